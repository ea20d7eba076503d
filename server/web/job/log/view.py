"""Which log a page of a job is about, and opening it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import web
from markupsafe import Markup, escape

from server.domain.attempts import Attempt
from server.domain.errors import BadField
from server.domain.jobs import Job
from server.http.log_source import opened_log
from server.http.params import int_param
from server.http.problems import Refusal
from server.http.route import LINK_PARAMETER
from server.http.stored_log import DAMAGED, STREAMS
from server.web.job.log.index import INDEXES, LogKey
from server.web.job.log.window import Log
from server.web.site.site import Site
from shared.http.authentication import PRINCIPAL
from shared.principals import Role

_MAX_ATTEMPT: Final = 2**31 - 1
MAX_NUMBER: Final = 2**62
"""Of a line or a byte."""
_CHUNK: Final = 1 << 18
"""Bytes of a stored log that are read at once: a page is made of them, and they are forgotten."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of a job's logs.

    Attributes:
        attempt: None: the latest.
    """

    stream: str
    attempt: int | None


def wanted_log(request: web.Request) -> Wanted:
    """Raises:
    BadField
    """
    stream = request.query.get("stream", STREAMS[0])
    if stream not in STREAMS:
        allowed = " or ".join(STREAMS)
        why = f"stream should be {allowed}, not {stream[:9]!r}"
        raise BadField("stream", "invalid_stream", why)
    given = "attempt" in request.query
    return Wanted(stream, int_param(request, "attempt", 1, 1, _MAX_ATTEMPT) if given else None)


def line_param(request: web.Request, name: str) -> int | None:
    """The number of a line; None: not given.

    Raises:
        BadField
    """
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
            yield Log(size, read, known.of(key, size), commands, context.reads.run)
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
