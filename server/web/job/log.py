"""The page with what a job writes, and the stream of lines that a page follows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import Any, Final

from aiohttp import hdrs, web
from markupsafe import Markup, escape

from server.domain.access import Area
from server.domain.errors import BadField, FerrymanError
from server.domain.jobs import Attempt, Job
from server.domain.permits import Shows
from server.http import event_stream
from server.http.context import Context
from server.http.logs import (
    DAMAGED,
    FOR_NOW,
    STREAMS,
    find_attempt,
    has_started,
    log_pieces,
    not_started,
    opened_log,
)
from server.http.params import int_param
from server.http.problems import Refusal
from server.http.requested_job import requested_job
from server.http.route import JOB_PAGE, LINK_PARAMETER
from server.store import jobs
from server.web.job.frame import frame_page, job_frame
from server.web.job.lines import PLAIN, Lines, Style
from server.web.job.window import (
    INDEXES,
    MAX_TEXT,
    MOST,
    Found,
    Log,
    LogKey,
    Window,
    search,
    window_around,
    window_from,
    window_to,
)
from server.web.site import PageRoute, Site
from shared.http.authentication import PRINCIPAL
from shared.http.middleware import GATE
from shared.principals import Role

_MAX_ATTEMPT: Final = 2**31 - 1
MAX_NUMBER: Final = 2**62
"""Of a line or a byte."""
_CHUNK: Final = 1 << 18
"""Bytes of a stored log that are read at once: a page is made of them, and they are forgotten."""


def wanted_log(request: web.Request) -> tuple[str, int | None]:
    """Which of a job's logs: its stream, and its attempt; None: the latest. Raises BadField."""
    stream = request.query.get("stream", STREAMS[0])
    if stream not in STREAMS:
        allowed = " or ".join(STREAMS)
        why = f"stream should be {allowed}, not {stream[:9]!r}"
        raise BadField("stream", "invalid_stream", why)
    given = "attempt" in request.query
    return stream, int_param(request, "attempt", 1, 1, _MAX_ATTEMPT) if given else None


def line_param(request: web.Request, name: str) -> int | None:
    """The number of a line; None: not given. Raises BadField."""
    return int_param(request, name, 1, 1, MAX_NUMBER) if request.query.get(name) else None


def address(request: web.Request, site: Site, path: str, **query: object) -> Markup:
    """Of a page, escaped; whoever came by a signed link keeps it. More parameters can follow."""
    given = {name: str(value) for name, value in query.items() if value is not None}
    if request[PRINCIPAL].role is Role.LINK:
        given[LINK_PARAMETER] = request.query.get(LINK_PARAMETER, "")
    found = site.url(path, **given)
    return escape(found + ("&" if given else "?"))


@asynccontextmanager
async def log_of(
    request: web.Request, site: Site, job: Job, attempt: Attempt, stream: str
) -> AsyncIterator[Log]:
    """Its log as it is now.

    Raises:
        Refusal: it cannot be read; also while it is read.
    """
    key = LogKey(job.id, attempt.number, stream)
    known = request.app[INDEXES]
    context, states = site.context, known.states(key)
    try:
        async with opened_log(context, job, attempt, stream, states, _CHUNK) as (size, read):
            commands = stream == STREAMS[0]
            yield Log(size, read, known.of(key, size), commands, context.pools.reads.run)
    except DAMAGED as problem:
        message = f"the log of attempt {attempt.number} of job {job.id} cannot be read: {problem}"
        raise Refusal(HTTPStatus.CONFLICT, "unreadable_result", message) from problem


def how_it_ended(job: Job, attempt: Attempt | None) -> str:
    """What is said behind the last line of a log; empty: it goes on."""
    if attempt is None or attempt.ended_at is None:
        return f"Job {job.id} has ended without a log" if job.ended and attempt is None else ""
    text = f"End of the log. Attempt {attempt.number}: {attempt.state.value}"
    if attempt.exit_code is not None:
        text += f", exit code {attempt.exit_code}"
    return text


_ATTEMPTS: Final = 50
"""That can be chosen from."""
_AGAIN_S: Final = 5
_COUNT_ON_S: Final = 1
_HERE: Final = frozenset({"not_started", "no_live_log", "no_log", "no_result", *FOR_NOW})
"""Codes of refusals that are no errors: there is a page that says so."""
_END: Final = 2**62


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """The last lines of a log, those around a line, or those with a text."""
    (stream, wanted), text = wanted_log(request), _text(request)
    lines = {name: line_param(request, name) for name in ("line", "from", "to")}
    frame = await job_frame(request, site)
    if "head" in request.query:  # a page that is open asks for what stands above its log
        return frame_page(request, site, frame, "log", only_head=True, query={"head": 1})
    job, context = frame.record, site.context
    attempt = await find_attempt(context, job, wanted)
    shown: dict[str, Any] = {"refusal": None, "window": None, "found": None, "part": None}
    status = HTTPStatus.OK
    try:
        if attempt is None or not has_started(job, attempt):
            raise not_started(job)
        turn = context.pools.reads.searches.turn() if text else nullcontext()
        async with turn, log_of(request, site, job, attempt, stream) as log:
            await log.count()
            shown |= await _read(log, text, lines)
    except Refusal as refusal:
        if refusal.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise
        shown["refusal"] = refusal
        if refusal.code not in _HERE:
            status = HTTPStatus(refusal.status)
    number = None if attempt is None else attempt.number
    follows = _follows(request, site, job, attempt, stream, shown)
    here = address(request, site, f"{frame.address}/log", stream=stream, attempt=number)
    return frame_page(
        request,
        site,
        frame,
        "log",
        status=status,
        refresh_s=_AGAIN_S if follows else _COUNT_ON_S if shown["part"] else None,
        query={"head": 1},
        only_head=False,
        stream=stream,
        attempt=number,
        attempts=await _numbers(site, job, number),
        sizes=await _sizes(site, job, attempt, stream, shown),
        here=here,
        link=request.query.get(LINK_PARAMETER, ""),
        follows=follows,
        rows=_rows(shown, stream, here, lines["line"]),
        line=lines["line"],
        search=text,
        most=MOST,
        max_text=MAX_TEXT,
        end=how_it_ended(job, attempt),
        **{name: shown[name] for name in ("window", "found", "part", "refusal")},
    )


async def _read(log: Log, text: str, lines: Mapping[str, int | None]) -> dict[str, Any]:
    """The window and what was found."""
    found: Found | None = None
    line, start, end = lines["line"], lines["from"], lines["to"]
    if text:
        found = await search(log, text, start or 1)
        line, start = line or (found.matches[0].line if found.matches else None), None
    if line is not None:
        window = await window_around(log, line)
    elif start is not None:
        window = await window_from(log, start)
    else:
        window = await window_to(log, end or _END)
    part = None if log.counted == log.size else (log.counted, log.size)
    return {"window": window, "found": found, "part": part, "size": log.size}


def _text(request: web.Request) -> str:
    text = request.query.get("search", "")
    if len(text) > MAX_TEXT or "\n" in text or "\r" in text:
        why = f"search should be at most {MAX_TEXT} characters on one line"
        raise BadField("search", "invalid_search", why)
    return text


def _follows(
    request: web.Request,
    site: Site,
    job: Job,
    attempt: Attempt | None,
    stream: str,
    shown: Mapping[str, Any],
) -> Markup | None:
    """Where what the page shows goes on; None: nowhere."""
    refusal: Refusal | None = shown["refusal"]
    window: Window | None = shown["window"]
    if (job.ended and attempt is None) or shown["part"] is not None or shown["found"] is not None:
        return None
    if attempt is not None and attempt.ended_at is not None:
        return None
    if refusal is not None and refusal.code not in {"not_started", *FOR_NOW}:
        return None
    if window is not None and not window.at_end:
        return None
    place = (window.next_offset, window.next_line) if window is not None else (0, 1)
    number = None if attempt is None else attempt.number
    path = f"/live/{job.id}/log"
    found = address(request, site, path, stream=stream, attempt=number)
    return found + Markup("offset={}&amp;first={}").format(*place)


async def _sizes(
    site: Site, job: Job, attempt: Attempt | None, stream: str, shown: Mapping[str, Any]
) -> dict[str, int | None]:
    """Bytes of both streams; None: not known now."""
    sizes: dict[str, int | None] = dict.fromkeys(STREAMS)
    if attempt is None:
        return sizes
    sizes |= {"stdout": attempt.stdout_bytes, "stderr": attempt.stderr_bytes}
    sizes[stream] = shown.get("size", sizes[stream])
    for other in STREAMS:
        if sizes[other] is None and shown["refusal"] is None:
            try:
                async with opened_log(site.context, job, attempt, other) as (size, _):
                    sizes[other] = size
            except Refusal:
                pass
    return sizes


async def _numbers(site: Site, job: Job, number: int | None) -> list[int]:
    """Of the attempts, the latest first."""
    if number is None or (job.attempt <= 1 and number <= 1):
        return []
    found = [
        one.number
        for one in await site.context.core.database.read_list(jobs.attempts, job.id, _ATTEMPTS)
    ]
    return found if number in found else [*found, number]


def _rows(shown: Mapping[str, Any], stream: str, here: Markup, line: int | None) -> list[Markup]:
    window: Window | None = shown["window"]
    found: Found | None = shown["found"]
    hits = frozenset(one.line for one in found.matches) if found is not None else frozenset()
    rows = window.rows if window is not None else []
    return [
        row.html(stream, here, hit=row.number in hits, marked=row.number == line) for row in rows
    ]


_PIECE: Final = 1 << 13
"""Bytes that are made into one event: they may be as many lines."""
_PACE_S: Final = 0.01
"""After each: making HTML of a flood leaves time for everybody else."""


async def follow(request: web.Request, site: Site) -> web.StreamResponse:
    """Lines from ``offset``, where the line ``first`` begins, as they are written.

    Events ``rows`` have HTML: lines, of which the first may have been sent before as far as it had
    come, and ``next``: where to go on after a break, and its line. ``end`` is the last.
    """
    context, (stream, wanted) = site.context, wanted_log(request)
    offset = int_param(request, "offset", 0, 0, MAX_NUMBER)
    first = int_param(request, "first", 1, 1, MAX_NUMBER)
    with request.app[GATE].long_poll(request):
        async with context.pools.reads.log_openings.turn():
            job = await requested_job(request, context)
            attempt = await find_attempt(context, job, wanted)
            if attempt is None or not has_started(job, attempt):
                if job.ended:
                    raise not_started(job)
                attempt, style = None, PLAIN
            else:
                style = await _style(request, site, job, attempt, stream, offset)
        answer = event_stream.response()
        await answer.prepare(request)
        if request.method == hdrs.METH_HEAD:
            return answer
        lines = Lines(first, style, commands=stream == STREAMS[0])
        number = None if attempt is None else attempt.number
        pieces = log_pieces(context, job, attempt, stream, offset)
        async with aclosing(pieces):
            async for piece in pieces:
                if not context.access.still_accepted(request):
                    break
                if not piece.data:
                    await answer.write(event_stream.COMMENT)
                number = piece.attempt
                path = f"/jobs/{job.id}/log"
                here = address(request, site, path, stream=stream, attempt=number)
                for at in range(0, len(piece.data), _PIECE):
                    data = piece.data[at : at + _PIECE]
                    offset += len(data)
                    # Not on the event loop: pieces full of colours take 10 ms each.
                    made = await context.pools.reads.run(_event, lines, data, stream, here, offset)
                    await answer.write(made)
                    await context.core.clock.sleep(_PACE_S)
        if not context.core.wakeups.closing:
            end = await _end(request, context, number)
            if end:
                document = json.dumps({"text": end})
                await answer.write(event_stream.message(offset, "end", document))
        await answer.write_eof()
    return answer


def _event(lines: Lines, data: bytes, stream: str, here: Markup, offset: int) -> bytes:
    """The lines of a piece. Args: offset: behind it."""
    rows = lines.feed(data)
    rows += filter(None, [lines.unfinished()])
    document = {
        "html": "".join(row.html(stream, here) for row in rows),
        "first": rows[0].number if rows else lines.number,
        "next": {"offset": offset - lines.length, "first": lines.number},
    }
    return event_stream.message(offset - lines.length, "rows", json.dumps(document))


async def _style(
    request: web.Request, site: Site, job: Job, attempt: Attempt, stream: str, offset: int
) -> Style:
    """What colours go on at a place; the usual ones where that cannot be found out now."""
    try:
        async with log_of(request, site, job, attempt, stream) as log:
            return await log.style_at(min(offset, log.size))
    except Refusal:
        return PLAIN


async def _end(request: web.Request, context: Context, number: int | None) -> str:
    """How the attempt ended; empty: it did not, or nobody can know now."""
    try:
        job = await requested_job(request, context)
        return how_it_ended(job, await find_attempt(context, job, number))
    except (FerrymanError, Refusal):
        return ""


ROUTES: Final = (
    PageRoute("GET", f"{JOB_PAGE}/log", Area.JOBS, page, by_link=(Shows.JOB,)),
    PageRoute("GET", "/live/{id}/log", Area.JOBS, follow, by_link=(Shows.JOB,)),
)
