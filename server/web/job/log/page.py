"""The page with what a job writes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from markupsafe import Markup

from server.domain.access import Area
from server.domain.attempts import Attempt
from server.domain.errors import BadField
from server.domain.jobs import Job
from server.domain.permits import Shows
from server.http.log_source import FOR_NOW, find_attempt, has_started, not_started, opened_log
from server.http.paths import JOB_PAGE
from server.http.problems import Refusal
from server.http.route import LINK_PARAMETER
from server.http.stored_log import STREAMS
from server.web.job.frame import frame_page, job_frame
from server.web.job.log.follow import follow
from server.web.job.log.search import MAX_TEXT, MOST, Found, search
from server.web.job.log.view import Wanted, address, how_it_ended, line_param, log_of, wanted_log
from server.web.job.log.window import Log, Window, window_around, window_from, window_to
from server.web.site.page_route import PageRoute
from server.web.site.site import Site

_ATTEMPTS: Final = 50
"""That can be chosen from."""
_AGAIN_S: Final = 5
_COUNT_ON_S: Final = 1
_HERE: Final = frozenset({"not_started", "no_live_log", "no_log", "no_result", *FOR_NOW})
"""Codes of refusals that are no errors: there is a page that says so."""
_END: Final = 2**62


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """The last lines of a log, those around a line, or those with a text."""
    wanted, text = wanted_log(request), _text(request)
    lines = {name: line_param(request, name) for name in ("line", "from", "to")}
    frame = await job_frame(request, site)
    if "head" in request.query:  # a page that is open asks for what stands above its log
        return frame_page(request, site, frame, "log", only_head=True, query={"head": 1})
    job, context = frame.record, site.context
    attempt = await find_attempt(context, job, wanted.attempt)
    shown: dict[str, Any] = {"refusal": None, "window": None, "found": None, "part": None}
    status = HTTPStatus.OK
    try:
        if attempt is None or not has_started(job, attempt):
            raise not_started(job)
        turn = context.reads.searches.turn() if text else nullcontext()
        async with turn, log_of(request, site, job, attempt, wanted.stream) as log:
            await log.count()
            shown |= await _read(log, text, lines)
    except Refusal as refusal:
        if refusal.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise
        shown["refusal"] = refusal
        if refusal.code not in _HERE:
            status = HTTPStatus(refusal.status)
    number = None if attempt is None else attempt.number
    follows = _follows(request, site, job, attempt, wanted, shown)
    here = address(request, site, f"{frame.address}/log", stream=wanted.stream, attempt=number)
    return frame_page(
        request,
        site,
        frame,
        "log",
        status=status,
        refresh_s=_AGAIN_S if follows else _COUNT_ON_S if shown["part"] else None,
        query={"head": 1},
        only_head=False,
        stream=wanted.stream,
        attempt=number,
        attempts=await _numbers(site, job, number),
        sizes=await _sizes(site, job, attempt, wanted.stream, shown),
        here=here,
        link=request.query.get(LINK_PARAMETER, ""),
        follows=follows,
        rows=_rows(shown, wanted.stream, here, lines["line"]),
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
    wanted: Wanted,
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
    found = address(request, site, path, stream=wanted.stream, attempt=number)
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
    found = [one.number for one in await site.context.jobs.attempts(job.id, _ATTEMPTS)]
    return found if number in found else [*found, number]


def _rows(shown: Mapping[str, Any], stream: str, here: Markup, line: int | None) -> list[Markup]:
    window: Window | None = shown["window"]
    found: Found | None = shown["found"]
    hits = frozenset(one.line for one in found.matches) if found is not None else frozenset()
    rows = window.rows if window is not None else []
    return [
        row.html(stream, here, hit=row.number in hits, marked=row.number == line) for row in rows
    ]


ROUTES: Final = (
    PageRoute("GET", f"{JOB_PAGE}/log", Area.JOBS, page, by_link=(Shows.JOB,)),
    PageRoute("GET", "/live/{id}/log", Area.JOBS, follow, by_link=(Shows.JOB,)),
)
