"""Stored results as answers, and why there is none."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.domain.jobs import ROW_BYTES, FileKind, Job, Result
from server.http import documents
from server.http.context import Context
from server.http.problems import Refusal
from server.stages.merged_results import Part, UnusableResult, given_bundle, merged_results
from server.store import batches, bundles, jobs
from shared.files.archives.merge import Source, merged
from shared.files.names import BundleError
from shared.http.file_response import requested_part, send_chunks, send_file, zip_headers
from shared.ids import AttemptKey
from shared.wire import JobState

_LEFT_OUT: Final = "left-out.txt"


async def send_result(
    request: web.Request,
    context: Context,
    job: Job,
    stored: Result,
    attempt: int | None = None,
    *,
    only_new: bool = False,
) -> web.StreamResponse:
    """A stored result: the job's, or that of one of its attempts. Files of its bundle that it
    refers to are put together with it, unless only what is new is asked for.
    """
    name = f"job-{job.id}" if attempt is None else f"job-{job.id}-attempt-{attempt}"
    if attempt is None and job.state is not JobState.COMPLETED:
        name += "-partial"
    key = AttemptKey(job.id, attempt or job.attempt)
    bundle = given_bundle(job)
    if stored.inputs and bundle is not None and not only_new:
        part = Part("", stored, bundle, job.bundle_folder)
        return await _send_joined(request, context, job, part, key, f"{name}.zip")
    try:
        if (content := await context.core.contents.small(stored)) is not None:
            return await send_file(request, content, f"{name}.zip", stored.sha256)
        async with context.core.contents.local_copy(FileKind.RESULT, stored) as path:
            return await send_file(request, path, f"{name}.zip", stored.sha256)
    except FileNotFoundError:
        raise await missing_result(context, job, key.attempt) from None


async def _send_joined(
    request: web.Request, context: Context, job: Job, part: Part, key: AttemptKey, name: str
) -> web.StreamResponse:
    try:
        whole = await _joined_in_memory(context, part)
        if whole is None:
            return await _send_made(request, context, part, key, name)
    except UnusableResult as problem:
        if problem.gone:
            raise await missing_result(context, job, key.attempt) from None
        message = (
            f"the result of job {job.id} cannot be put together: {problem.why}; what is new of it "
            f"is at /api/v1/jobs/{job.id}/result?only=new"
        )
        raise Refusal(HTTPStatus.CONFLICT, "unreadable_result", message) from problem
    return await send_file(request, whole, name, hashlib.sha256(whole).hexdigest(), part.etag)


async def _joined_in_memory(context: Context, part: Part) -> bytes | None:
    """All of it; None: it is not small. Raises UnusableResult."""
    stored, bundle = part.result, part.bundle
    if bundle is None or max(stored.size, bundle.size) > ROW_BYTES:
        return None
    names = stored.file, bundle.file
    read = context.core.database.read
    result, sent = await read(lambda tx: [bundles.content(tx, name) for name in names])
    if result is None or sent is None:
        return None  # gone: which is found out where they are opened
    try:
        return merged(Source("", result, stored.inputs, sent, part.folder))
    except BundleError as problem:
        raise UnusableResult(part, problem) from None


async def _send_made(
    request: web.Request, context: Context, part: Part, key: AttemptKey, name: str
) -> web.StreamResponse:
    """Made while it is sent. Raises UnusableResult."""
    stored, etag = part.result, part.etag
    known = await context.core.database.read(jobs.joined_sha256, key, stored)
    headers = zip_headers(name, known, etag)
    async with merged_results(
        context.core.contents, context.core.scratch, [part], run=context.pools.reads.run
    ) as whole:
        wanted = requested_part(request, whole.size, etag, headers)
        if isinstance(wanted, web.Response):
            return wanted
        is_whole = wanted.status == HTTPStatus.OK and request.method == "GET"
        digest = hashlib.sha256() if known is None and is_whole else None

        def chunks(start: int, stop: int) -> AsyncGenerator[bytes, None]:
            return whole.chunks(start, stop, digest)

        response = await send_chunks(request, wanted, headers, chunks)
    if digest is not None:
        await context.core.database.write(jobs.keep_joined, key, stored, digest.hexdigest())
    return response


async def send_batch(
    request: web.Request, context: Context, parent: Job, *, only_new: bool = False
) -> web.StreamResponse:
    """What the children left, each below a folder of its name; a file at the root names those that
    have no result, or none that can be read.

    Raises:
        Refusal: as many as may be are being sent to the caller.
    """
    async with context.pools.reads.batch_zips.turn():
        return await _send(request, context, parent, only_new=only_new)


async def _send(
    request: web.Request, context: Context, parent: Job, *, only_new: bool
) -> web.StreamResponse:
    children = await context.core.database.read_list(batches.child_results, parent.id)
    parts = [
        Part(f"{child.name}/", child.result, None if only_new else child.bundle, child.folder)
        for child in children
        if child.result is not None
    ]
    missing = [f"{child.name}/: there is none" for child in children if child.result is None]
    note = _LEFT_OUT
    while any(note == child.name for child in children):
        note = f"_{note}"
    async with merged_results(
        *(context.core.contents, context.core.scratch, parts),
        note=note,
        missing=missing,
        run=context.pools.reads.run,
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
    now = await context.core.database.read(jobs.get, job.id)  # removed since the row was read?
    if (await context.core.database.read(jobs.attempt, AttemptKey(job.id, attempt))).result is None:
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
