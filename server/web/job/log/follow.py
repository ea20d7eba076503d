"""A log as it is written, for a page that is open: lines as HTML, as server-sent events."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Final

from aiohttp import hdrs, web
from markupsafe import Markup

from server.domain.attempts import Attempt
from server.domain.errors import FerrymanError
from server.domain.jobs import Job
from server.http import event_stream
from server.http.context import Context
from server.http.log_source import find_attempt, has_started, log_pieces, not_started
from server.http.params import int_param
from server.http.problems import Refusal
from server.http.requested_job import requested_job
from server.http.stored_log import STREAMS
from server.web.job.log.ansi import PLAIN, Style
from server.web.job.log.lines import Lines, Row
from server.web.job.log.view import MAX_NUMBER, address, how_it_ended, log_of, wanted_log
from server.web.site.site import Site

_PIECE: Final = 1 << 13
"""Bytes that are made into one event: they may be as many lines."""
_PACE_S: Final = 0.01
"""After each: making HTML of a flood leaves time for everybody else."""


async def follow(request: web.Request, site: Site) -> web.StreamResponse:
    """Lines from ``offset``, where the line ``first`` begins, as they are written.

    Events ``rows`` have HTML: lines, of which the first may have been sent before as far as it had
    come, and ``next``: where to go on after a break, and its line. ``end`` is the last.
    """
    context, wanted = site.context, wanted_log(request)
    offset = int_param(request, "offset", 0, 0, MAX_NUMBER)
    first = int_param(request, "first", 1, 1, MAX_NUMBER)
    with context.waiting(request):
        async with context.reads.log_openings.turn():
            job = await requested_job(request, context)
            attempt = await find_attempt(context, job, wanted.attempt)
            if attempt is None or not has_started(job, attempt):
                if job.ended:
                    raise not_started(job)
                attempt, style = None, PLAIN
            else:
                style = await _style(request, site, job, attempt, wanted.stream, offset)
        answer = event_stream.response()
        await answer.prepare(request)
        if request.method == hdrs.METH_HEAD:
            return answer
        lines = Lines(first, style, commands=wanted.stream == STREAMS[0])
        number = None if attempt is None else attempt.number
        pieces = log_pieces(context, job, attempt, wanted.stream, offset)
        async with aclosing(pieces):
            async for piece in pieces:
                if not context.still_accepted(request):
                    break
                if not piece.data:
                    await answer.write(event_stream.COMMENT)
                number = piece.attempt
                path = f"/jobs/{job.id}/log"
                here = address(request, site, path, stream=wanted.stream, attempt=number)
                for at in range(0, len(piece.data), _PIECE):
                    data = piece.data[at : at + _PIECE]
                    offset += len(data)
                    # Not on the event loop: pieces full of colours take 10 ms each.
                    made = await context.reads.run(_event, lines, data, wanted.stream, here, offset)
                    await answer.write(made)
                    await context.clock.sleep(_PACE_S)
        if not context.watch.closing:
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
    html = "".join(row.html(stream, here) for row in rows)
    return _message(html, rows, offset - lines.length, lines.number)


def _message(html: str, rows: list[Row], offset: int, line: int) -> bytes:
    document = {
        "html": html,
        "first": rows[0].number if rows else line,
        "next": {"offset": offset, "first": line},
    }
    return event_stream.message(offset, "rows", json.dumps(document))


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
