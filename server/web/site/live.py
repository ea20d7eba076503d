"""Says to an open page that what it shows may have changed; the page then loads itself again."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area, visible
from server.domain.permits import Shows
from server.http import event_stream
from server.http.params import job_id
from server.http.shared_reads import Messages
from server.ports import Filter
from server.stages.read import list_events, read_job
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.http.authentication import PRINCIPAL

_AT_ONCE: Final = 100
_GATHER_S: Final = 0.5
_CHANGED: Final = "changed"


async def of_all(request: web.Request, site: Site) -> web.StreamResponse:
    """Something happened to a job that the caller may see."""
    context, principal = site.context, request[PRINCIPAL]

    async def read(behind: int) -> Messages:
        async def own() -> Messages:
            page = await list_events(context.jobs, principal, Filter(), behind, _AT_ONCE)
            return Messages(_message(page.reached, bool(page.items)), page.reached, page.more)

        key = ("live", visible(principal), behind)
        return await context.event_reads.read(context.watch.events_version, key, own)

    after = event_stream.last_event_id(request)
    if after is None:
        after = await context.jobs.newest_event()
    changes = context.watch.events_of(None)
    return await event_stream.stream(request, context, read, after, changes, gather_s=_GATHER_S)


async def of_job(request: web.Request, site: Site) -> web.StreamResponse:
    """Something happened to this job."""
    context, principal = site.context, request[PRINCIPAL]
    wanted = job_id(request)

    async def read(behind: int) -> Messages:
        await read_job(context.jobs, principal, wanted)
        found = await context.jobs.events(wanted, behind, _AT_ONCE)
        reached = found[-1].seq if found else behind
        return Messages(_message(reached, bool(found)), reached, len(found) == _AT_ONCE)

    after = event_stream.last_event_id(request)
    if after is None:
        after = await context.jobs.newest_event()
    changes = context.watch.events_of(wanted)
    return await event_stream.stream(request, context, read, after, changes, gather_s=_GATHER_S)


def _message(number: int, changed: bool) -> bytes:
    return event_stream.message(number, _CHANGED, "{}") if changed else b""


ROUTES: Final = (
    PageRoute("GET", "/live", Area.JOBS, of_all),
    PageRoute("GET", "/live/{id}", Area.JOBS, of_job, by_link=(Shows.JOB,)),
)
