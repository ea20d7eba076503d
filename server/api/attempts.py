"""The attempts of a job: what each one used and said, and the result and logs that it left."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.api.codes import FILE, NO_LOG
from server.domain.access import Area
from server.domain.attempts import Attempt
from server.domain.jobs import Job
from server.http import documents
from server.http.context import Context
from server.http.log_source import LOG_SENDS, send_log
from server.http.params import attempt_number
from server.http.paths import ATTEMPT, JOB
from server.http.problems import Refusal
from server.http.requested_job import requested_job
from server.http.results import send_result
from server.http.route import Route
from server.http.stored_log import STREAMS, nothing_left, stored_log
from shared import wire
from shared.ids import AttemptKey
from shared.wire import AttemptDoc, AttemptPage


async def page(request: web.Request, context: Context) -> AttemptPage:
    """All attempts of a job that an agent took."""
    job = await requested_job(request, context)
    attempts = await context.jobs.attempts(job.id)
    return AttemptPage(items=[documents.attempt_doc(one, context.url_prefix) for one in attempts])


async def read(request: web.Request, context: Context) -> AttemptDoc:
    """One attempt."""
    _, attempt = await _requested(request, context)
    return documents.attempt_doc(attempt, context.url_prefix)


async def result(request: web.Request, context: Context) -> web.StreamResponse:
    """The result of an attempt, also of one that failed or was cancelled."""
    job, attempt = await _requested(request, context)
    if attempt.result is None:
        raise nothing_left(job, attempt)
    return await send_result(request, context, job, attempt.result, attempt.number)


async def log(request: web.Request, context: Context) -> web.StreamResponse:
    """``stdout`` or ``stderr`` of an attempt, out of its stored result."""
    job, attempt = await _requested(request, context)
    stream = request.match_info["stream"]
    if stream not in STREAMS:
        raise Refusal(HTTPStatus.NOT_FOUND, "no_log", f"a log is {' or '.join(STREAMS)}")
    async with stored_log(context, job, attempt, stream) as log:
        return await send_log(request, attempt, stream, log.chunks, log.size)


async def _requested(request: web.Request, context: Context) -> tuple[Job, Attempt]:
    """The attempt that the path names, and its job."""
    job = await requested_job(request, context)
    return job, await context.jobs.attempt(AttemptKey(job.id, attempt_number(request)))


_ZIP: Final = "application/zip"
_ZIP_OR_PART: Final = {200: _ZIP, 206: _ZIP, 304: None}
_NOTHING: Final = (*FILE, "result_missing", "not_ended", "no_result", "result_cleaned")

ROUTES: Final = (
    Route("GET", f"{JOB}/attempts", Area.JOBS, page, {200: wire.AttemptPage}),
    Route("GET", ATTEMPT, Area.JOBS, read, {200: wire.AttemptDoc}),
    Route("GET", f"{ATTEMPT}/result", Area.JOBS, result, _ZIP_OR_PART, _NOTHING),
    Route(
        "GET",
        f"{ATTEMPT}/logs/{{stream}}",
        Area.JOBS,
        log,
        {200: "text/plain", 206: "text/plain", 304: None},
        (*NO_LOG, *FILE),
        sends=LOG_SENDS,
    ),
)
