"""Stored results as answers, and why there is none."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from server.domain.files import FileKind
from server.domain.jobs import Job, Result
from server.http import documents
from server.http.context import Context
from server.http.problems import Refusal
from shared.http.file_response import send_file
from shared.ids import AttemptKey
from shared.wire import JobState


async def send_result(
    request: web.Request, context: Context, job: Job, stored: Result, attempt: int | None = None
) -> web.StreamResponse:
    """A stored result: the job's, or that of one of its attempts."""
    name = f"job-{job.id}" if attempt is None else f"job-{job.id}-attempt-{attempt}"
    if attempt is None and job.state is not JobState.COMPLETED:
        name += "-partial"
    try:
        async with context.storage.local_copy(FileKind.RESULT, stored.file) as path:
            whole = context.storage.in_memory(FileKind.RESULT, stored.file)
            return await send_file(
                request, path, f"{name}.zip", stored.sha256, stored.section, whole
            )
    except FileNotFoundError:
        raise await missing_result(context, job, attempt or job.attempt) from None


async def missing_result(context: Context, job: Job, attempt: int) -> Refusal:
    """Why a file that a row referred to is not there."""
    now = await context.jobs.get(job.id)  # removed since the row was read?
    if (await context.jobs.attempt(AttemptKey(job.id, attempt))).result is None:
        return cleaned(now)
    return Refusal(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "result_missing",
        f"the stored result of job {job.id} is missing; tell the operator",
        job_id=job.id,
        state=documents.reference_state(job.state),
    )


def cleaned(job: Job) -> Refusal:
    """Its files are removed."""
    return Refusal(
        HTTPStatus.GONE,
        "result_cleaned",
        f"job {job.id} has expired, its files are removed",
        job_id=job.id,
        state=JobState.CLEANED,
    )
