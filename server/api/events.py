"""What happened: to one job, or to all that a caller may see, as pages and as they happen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from server.domain.access import Area, visible
from server.domain.jobs import Event
from server.domain.permits import Shows
from server.http import documents, event_stream
from server.http.context import Context
from server.http.params import SERVICE, USER, Param, int_param, job_id, seconds, whole
from server.http.reads import Messages
from server.http.requested_job import wait_until
from server.http.route import JOB, Route
from server.stages.read import read_events, read_job, read_list
from server.store import events
from server.store.events import EventsPage
from server.store.pages import Filter
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.wire import EventPage

_LAST: Final = 2**63 - 1
_PAGE: Final = 500
_AT_ONCE: Final = 100
"""Events that are in memory for one reader of a stream."""
_GATHER_S: Final = 0.2
_NOW: Final = "now"


async def of_job(request: web.Request, context: Context) -> web.StreamResponse | EventPage:
    """What happened to a job, in order; ``?after=SEQ&wait=S`` waits for what is newer."""
    wanted, principal = job_id(request), request[PRINCIPAL]
    after = int_param(request, "after", 0, 0, _LAST)
    limit = int_param(request, "limit", _PAGE, 1, 1_000)

    async def read(behind: int) -> Messages:
        job = await read_job(context.core.database, principal, wanted)
        found = await context.core.database.read(events.of_job, wanted, behind, _AT_ONCE)
        full = len(found) == _AT_ONCE
        reached = found[-1].seq if found else behind
        return Messages(_messages(found), reached, full, job.ended and not full)

    def changes() -> event_stream.Changes:
        return context.core.wakeups.events.of(wanted)

    if event_stream.is_wanted(request):
        seen = event_stream.last_event_id(request)
        behind = after if seen is None else seen
        return await event_stream.stream(request, context, read, behind, changes())

    async def newer() -> EventsPage:
        return await read_events(context.core.database, principal, wanted, after, limit)

    return _page(await wait_until(request, context, newer, _has_items, changes))


async def of_all(request: web.Request, context: Context) -> web.StreamResponse | EventPage:
    """What happened to all jobs that the caller may see."""
    limit = int_param(request, "limit", _PAGE, 1, 1_000)
    where = Filter(request.query.get("user"), request.query.get("service"))
    streamed = event_stream.is_wanted(request)
    seen = event_stream.last_event_id(request) if streamed else None
    text = request.query.get("after", _NOW if streamed else "0")
    if seen is not None:
        after = seen
    elif text == _NOW:
        after = await context.core.database.read(events.newest_seq)
    else:
        after = int_param(request, "after", 0, 0, _LAST)
    principal, reached = request[PRINCIPAL], after

    async def newer() -> EventsPage:
        nonlocal reached
        page = await read_list(context.core.database, principal, events.page, where, reached, limit)
        reached = page.reached
        return page

    async def read(behind: int) -> Messages:
        async def own() -> Messages:
            page = await read_list(
                context.core.database, principal, events.page, where, behind, _AT_ONCE
            )
            return Messages(_messages(page.items), page.reached, page.more)

        key = (visible(principal), where, behind)
        return await context.pools.event_reads.read(context.core.wakeups.events.version, key, own)

    def changes() -> event_stream.Changes:
        return context.core.wakeups.events.of(None)

    if streamed:
        return await event_stream.stream(
            request, context, read, after, changes(), gather_s=_GATHER_S
        )
    return _page(await wait_until(request, context, newer, _has_items_or_more, changes))


def _has_items(page: EventsPage) -> bool:
    return bool(page.items)


def _has_items_or_more(page: EventsPage) -> bool:
    return bool(page.items) or page.more


def _page(page: EventsPage) -> EventPage:
    return EventPage(
        items=[documents.event_doc(event) for event in page.items],
        next=str(page.reached) if page.more else None,
        reached=page.reached,
    )


def _messages(happened: Sequence[Event]) -> bytes:
    return b"".join(
        event_stream.message(one.seq, one.event, documents.event_doc(one).model_dump_json())
        for one in happened
    )


_EVENTS: Final = {
    "after": whole("only events with a higher seq", 0, _LAST),
    "limit": whole("items of a page", 1, 1_000, _PAGE),
    "wait": seconds("where there is none yet, wait for one, at most so many seconds"),
}
_ALL_EVENTS: Final = {
    "after": Param(
        "only events with a higher seq; now: those that are still to come",
        {"anyOf": [_EVENTS["after"].schema, {"type": "string", "enum": [_NOW]}]},
    ),
    "user": USER,
    "service": SERVICE,
}
_BOTH: Final = (wire.EventPage, "text/event-stream")

ROUTES: Final = (
    Route(
        "GET",
        f"{JOB}/events",
        Area.JOBS,
        of_job,
        {200: _BOTH, 204: None},
        _EVENTS,
        by_link=(Shows.JOB,),
    ),
    Route("GET", "/api/v1/events", Area.JOBS, of_all, {200: _BOTH}, _EVENTS | _ALL_EVENTS),
)
