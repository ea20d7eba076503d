"""The log of an attempt: from its agent while it runs, from its stored result afterwards."""

from __future__ import annotations

import codecs
import json
from contextlib import aclosing
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web

from server.domain.access import Area
from server.domain.errors import BadField
from server.domain.jobs import Attempt, Job
from server.domain.permits import Shows
from server.http import event_stream
from server.http.context import Context
from server.http.event_stream import NO_BUFFERING
from server.http.logs import (
    FOR_NOW,
    LOG_HEADERS,
    LOG_SENDS,
    STREAMS,
    find_attempt,
    has_started,
    log_headers,
    log_pieces,
    not_started,
    opened_log,
    send_log,
)
from server.http.params import choice, flag, flag_param, int_param, whole
from server.http.problems import Refusal
from server.http.requested_job import requested_job
from server.http.route import JOB, Route
from shared.http.middleware import GATE

_LAST: Final = 2**62
_MAX_ATTEMPT: Final = 2**31 - 1
_AGAIN_S: Final = 1.0
"""After an agent had nothing to say, or could not be reached."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the query asks for."""

    stream: str
    attempt: int | None
    """None: the latest."""
    offset: int | None
    tail: int | None
    follow: bool

    def start(self, size: int) -> int:
        """Where to begin in a log of so many bytes.

        Raises:
            Refusal: behind its end.
        """
        start = self.offset or 0 if self.tail is None else max(0, size - self.tail)
        if start > size:
            message = f"offset: the log has {size} bytes, so it can be 0 to {size}, not {start}"
            headers = {"Content-Range": f"bytes */{size}"}
            raise Refusal(416, "invalid_offset", message, part="offset", headers=headers)
        return start


async def read(request: web.Request, context: Context) -> web.StreamResponse:
    """``stdout`` or ``stderr`` of an attempt; ``?follow=1`` goes on with what it writes."""
    wanted = _wanted(request)
    if event_stream.is_wanted(request):
        return await _events(request, context, wanted)
    if wanted.follow:
        return await _followed(request, context, wanted)
    return await _part(request, context, wanted)


def _wanted(request: web.Request) -> _Wanted:
    query = request.query
    stream = query.get("stream", STREAMS[0])
    if stream not in STREAMS:
        allowed = " or ".join(STREAMS)
        raise BadField(
            "stream", "invalid_stream", f"stream should be {allowed}, not {stream[:9]!r}"
        )
    if "offset" in query and "tail" in query:
        raise BadField("tail", "invalid_tail", "tail: there is an offset, too; give one of them")
    return _Wanted(
        stream,
        int_param(request, "attempt", 1, 1, _MAX_ATTEMPT) if "attempt" in query else None,
        int_param(request, "offset", 0, 0, _LAST) if "offset" in query else None,
        int_param(request, "tail", 0, 0, _LAST) if "tail" in query else None,
        flag_param(request, "follow"),
    )


# -- what there is now


async def _part(request: web.Request, context: Context, wanted: _Wanted) -> web.StreamResponse:
    """The log as it is now, or the part of it that was asked for."""
    job = await requested_job(request, context)
    attempt = await find_attempt(context, job, wanted.attempt)
    if attempt is None:
        raise not_started(job)
    async with opened_log(context, job, attempt, wanted.stream) as (size, log):
        start = wanted.start(size)
        whole = wanted.offset is None and wanted.tail is None
        return await send_log(request, attempt, wanted.stream, log, size, None if whole else start)


# -- what there is, and what comes


async def _followed(request: web.Request, context: Context, wanted: _Wanted) -> web.StreamResponse:
    """Bytes as they are written, until the attempt has ended, or nothing came for a while."""
    with request.app[GATE].long_poll(request):
        async with context.pools.reads.log_openings.turn():
            job, attempt, start = await _begin(request, context, wanted)
        headers = {**LOG_HEADERS, **NO_BUFFERING, **log_headers(attempt, start)}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        if request.method != hdrs.METH_HEAD:
            async with aclosing(log_pieces(context, job, attempt, wanted.stream, start)) as pieces:
                async for piece in pieces:
                    if not piece.data or not context.access.still_accepted(request):
                        break  # a proxy would cut it off; the caller asks again from its offset
                    await response.write(piece.data)
        await response.write_eof()
    return response


async def _events(request: web.Request, context: Context, wanted: _Wanted) -> web.StreamResponse:
    """The same as server-sent events: text, and the offset behind it. They always follow."""
    seen = event_stream.last_event_id(request)
    if seen is not None:
        wanted = replace(wanted, offset=seen, tail=None)
    with request.app[GATE].long_poll(request):
        async with context.pools.reads.log_openings.turn():
            job, attempt, offset = await _begin(request, context, wanted)
        if seen is not None and attempt is not None and attempt.ended_at is not None:
            async with opened_log(context, job, attempt, wanted.stream) as (size, _):
                if offset == size:
                    return web.Response(status=HTTPStatus.NO_CONTENT)  # or it asks again and again
        response = event_stream.response()
        await response.prepare(request)
        if request.method == hdrs.METH_HEAD:
            return response
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        number = None if attempt is None else attempt.number

        async def send(data: bytes, *, final: bool = False) -> None:
            text = decoder.decode(data, final)
            if text:
                behind = offset - len(decoder.getstate()[0])  # half a character is sent later
                document = json.dumps({"attempt": number, "text": text})
                await response.write(event_stream.message(behind, "log", document))

        async with aclosing(log_pieces(context, job, attempt, wanted.stream, offset)) as pieces:
            async for piece in pieces:
                if not context.access.still_accepted(request):
                    await response.write_eof()
                    return response
                if piece.data:
                    offset, number = offset + len(piece.data), piece.attempt
                    await send(piece.data)
                else:
                    await response.write(event_stream.COMMENT)
        if not context.core.wakeups.closing:
            await send(b"", final=True)
            document = json.dumps({"attempt": number, "offset": offset})
            await response.write(event_stream.message(offset, "end", document))
        await response.write_eof()
    return response


async def _begin(
    request: web.Request, context: Context, wanted: _Wanted
) -> tuple[Job, Attempt | None, int]:
    """The job, its attempt (None: it has not started), and where to begin.

    Raises:
        Refusal: there is nothing to follow.
    """
    job = await requested_job(request, context)
    attempt = await find_attempt(context, job, wanted.attempt)
    if attempt is None or not has_started(job, attempt):
        if job.ended:
            raise not_started(job)
        return job, None, wanted.offset or 0
    try:
        async with opened_log(context, job, attempt, wanted.stream) as (size, _):
            return job, attempt, wanted.start(size)
    except Refusal as refusal:
        if refusal.code in FOR_NOW and wanted.tail is None:
            return job, attempt, wanted.offset or 0
        raise


_LOGS: Final = {
    "stream": choice("which of the two", STREAMS, STREAMS[0]),
    "attempt": whole("its number; the latest where it is missing", 1, _MAX_ATTEMPT),
    "offset": whole("from this byte on", 0, _LAST),
    "tail": whole("in place of offset: the last so many bytes", 0, _LAST),
    "follow": flag("1: go on with what it writes, until it has ended or wrote nothing for 15 s"),
}
ROUTES: Final = (
    Route(
        "GET",
        f"{JOB}/logs",
        Area.JOBS,
        read,
        {200: ("text/plain", "text/event-stream"), 204: None, 206: "text/plain", 304: None},
        _LOGS,
        by_link=(Shows.JOB,),
        sends=LOG_SENDS,
    ),
)
