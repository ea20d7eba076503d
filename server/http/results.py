"""Stored results as answers, and why there is none."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.domain.jobs import FileKind, Job, Result
from server.http import documents
from server.http.context import Context
from server.http.problems import Refusal
from server.stages.merged_results import Part, merged_results
from server.store import attempts, batches, jobs
from shared.http.file_response import send_file
from shared.ids import AttemptKey
from shared.wire import JobState

_LEFT_OUT: Final = "left-out.txt"


async def send_result(
    request: web.Request, context: Context, job: Job, stored: Result, attempt: int | None = None
) -> web.StreamResponse:
    """A stored result: the job's, or that of one of its attempts."""
    name = f"job-{job.id}" if attempt is None else f"job-{job.id}-attempt-{attempt}"
    if attempt is None and job.state is not JobState.COMPLETED:
        name += "-partial"
    try:
        async with context.contents.local_copy(FileKind.RESULT, stored) as path:
            whole = context.storage.in_memory(FileKind.RESULT, stored.file)
            return await send_file(
                request, path, f"{name}.zip", stored.sha256, stored.section, whole
            )
    except FileNotFoundError:
        raise await missing_result(context, job, attempt or job.attempt) from None


async def send_batch(request: web.Request, context: Context, parent: Job) -> web.StreamResponse:
    """What the children left, each below a folder of its name; a file at the root names those that
    have no result, or none that can be read.

    Raises:
        Refusal: as many as may be are being sent to the caller.
    """
    async with context.reads.batch_zips.turn():
        return await _send(request, context, parent)


async def _send(request: web.Request, context: Context, parent: Job) -> web.StreamResponse:
    results = await context.database.read_list(batches.child_results, parent.id)
    parts = [Part(f"{name}/", result) for name, result in results if result is not None]
    missing = [f"{name}/: there is none" for name, result in results if result is None]
    note = _LEFT_OUT
    while any(note == name for name, _ in results):
        note = f"_{note}"
    async with merged_results(
        *(context.contents, context.scratch, parts),
        note=note,
        missing=missing,
        run=context.reads.run,
    ) as merged:
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/zip",
                "Content-Disposition": f'attachment; filename="batch-{parent.id}.zip"',
                "Content-Length": str(merged.size),
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
            }
        )
        await response.prepare(request)
        if request.method != "HEAD":
            async for piece in merged.chunks():
                await response.write(piece)
        await response.write_eof()
    return response


async def missing_result(context: Context, job: Job, attempt: int) -> Refusal:
    """Why a file that a row referred to is not there."""
    now = await context.database.read(jobs.get, job.id)  # removed since the row was read?
    if (await context.database.read(attempts.get, AttemptKey(job.id, attempt))).result is None:
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
