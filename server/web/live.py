"""Says to an open page that what it shows may have changed; the page then loads its part again."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area, visible
from server.domain.permits import Shows
from server.http import event_stream
from server.http.params import int_param
from server.http.params import job_id as job_of
from server.http.reads import Messages
from server.stages.read import read_job, read_list
from server.store import events
from server.store.pages import Filter
from server.web.site import PageRoute, Site
from shared.http.authentication import PRINCIPAL

_AT_ONCE: Final = 100
_GATHER_S: Final = 0.5
_LAST: Final = 2**63 - 1


async def of_all(request: web.Request, site: Site) -> web.StreamResponse:
    """Something happened to a job that the caller may see."""
    context, principal = site.context, request[PRINCIPAL]

    async def read(behind: int) -> Messages:
        async def own() -> Messages:
            page = await read_list(
                context.core.database, principal, events.page, Filter(), behind, _AT_ONCE
            )
            return Messages(_changed(page.reached, bool(page.items)), page.reached, page.more)

        key = ("live", visible(principal), behind)
        return await context.pools.event_reads.read(context.core.wakeups.events.version, key, own)

    after, changes = await _after(request, site), context.core.wakeups.events.of(None)
    return await event_stream.stream(request, context, read, after, changes, gather_s=_GATHER_S)


async def of_job(request: web.Request, site: Site) -> web.StreamResponse:
    """Something happened to this job; it says so when the job has ended, and then nothing more."""
    context, principal, job_id = site.context, request[PRINCIPAL], job_of(request)
    first = True

    async def read(behind: int) -> Messages:
        nonlocal first
        job = await read_job(context.core.database, principal, job_id)
        found = await context.core.database.read(events.of_job, job_id, behind, _AT_ONCE)
        reached, more = (found[-1].seq if found else behind), len(found) == _AT_ONCE
        data, last = _changed(reached, bool(found)), job.ended and not more
        if last and (data or not first):
            data += event_stream.message(reached, "end", "{}")
        first = False
        return Messages(data, reached, more, last)

    after, changes = await _after(request, site), context.core.wakeups.events.of(job_id)
    return await event_stream.stream(request, context, read, after, changes, gather_s=_GATHER_S)


async def _after(request: web.Request, site: Site) -> int:
    """The newest event that the page knows: it says so, and its browser when it connects again."""
    after = event_stream.last_event_id(request)
    if after is None and "after" in request.query:
        after = int_param(request, "after", 0, 0, _LAST)
    return await site.context.core.database.read(events.newest_seq) if after is None else after


def _changed(number: int, changed: bool) -> bytes:
    return event_stream.message(number, "changed", "{}") if changed else b""


ROUTES: Final = (
    PageRoute("GET", "/live", Area.JOBS, of_all),
    PageRoute("GET", "/live/{id}", Area.JOBS, of_job, by_link=(Shows.JOB,)),
)
