"""Results, on job-orchestrator's routes and on ours."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.domain import states
from server.domain.access import Area
from server.domain.agents import AgentError
from server.domain.errors import BadField, NotAllowed
from server.domain.jobs import FileKind, Job
from server.domain.permits import Shows
from server.http import documents
from server.http.context import Context
from server.http.files import MAX_ATTEMPT
from server.http.logs import nothing_left
from server.http.params import WAIT, choice, flag, flag_param, int_param, whole
from server.http.problems import Refusal
from server.http.requested_job import requested_job, wait_for_job
from server.http.results import cleaned, send_batch, send_result
from server.http.route import JOB, Route, json_answer
from server.storage.scratch import ScratchFile
from server.store import batches, jobs
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.http.file_response import send_file
from shared.ids import AttemptKey
from shared.principals import Role
from shared.wire import JobState


async def download(request: web.Request, context: Context) -> web.StreamResponse:
    """The result of a Completed job; otherwise where it stands."""
    job = await wait_for_job(request, context, until_ended=True)
    if job.state is JobState.COMPLETED and job.result is not None:
        return await send_result(request, context, job, job.result)
    if job.state is JobState.COMPLETED and job.deferred:
        return await send_batch(request, context, job)
    return json_answer(
        documents.status_body(job),
        headers=documents.when_to_ask_again(job, context.core.clock.now()),
    )


async def partial(request: web.Request, context: Context) -> web.StreamResponse:
    """A ZIP of what is there now, whatever the state."""
    job = await requested_job(request, context)
    if job.result is not None:
        return await send_result(request, context, job, job.result)
    if job.state is JobState.CLEANED:
        raise cleaned(job)
    if job.deferred and job.state is not JobState.QUEUED:  # an array, whatever became of it
        return await send_batch(request, context, job)

    async def make(to: ScratchFile) -> None:
        agent = context.core.registry.named(job.agent or "")
        if job.state in states.AT_AGENT and agent is not None and job.payload_id is not None:
            try:
                await agent.partial(job, to)
            except AgentError:
                pass  # then only what we know ourselves
            else:
                return
        await asyncio.to_thread(to.path.write_bytes, _only_the_document(job, context))

    async with context.pools.snapshots.snapshot(job.id, make) as path:
        return await send_file(request, path, f"job-{job.id}-partial.zip")


async def result(request: web.Request, context: Context) -> web.StreamResponse:
    """The result with plain HTTP meanings; or what one attempt, or the children, have left."""
    of_children = flag_param(request, "children")
    only_new = _only_new(request)
    if of_children or "attempt" in request.query:
        if request[PRINCIPAL].role is Role.LINK:
            raise NotAllowed("a signed link is good for the job's own result")
        job = await requested_job(request, context)
        if of_children:
            return await _of_children(request, context, job, only_new=only_new)
        return await _of_attempt(request, context, job, only_new=only_new)
    job = await wait_for_job(request, context, until_ended=True)
    if job.state is JobState.COMPLETED and job.result is not None:
        return await send_result(request, context, job, job.result, only_new=only_new)
    if job.state is JobState.COMPLETED and job.deferred:
        return await send_batch(request, context, job, only_new=only_new)
    if job.state is JobState.CLEANED:
        raise cleaned(job)
    if job.ended:
        why = f"job {job.id} is {job.state}, it has no result: {job.message}"
        if job.result is not None:
            why += f". What it left: /download_partial/{job.id}"
        raise Refusal(HTTPStatus.CONFLICT, job.reason or f"job_{job.state.lower()}", why)
    headers = documents.when_to_ask_again(job, context.core.clock.now())
    return json_answer(context.document(job), HTTPStatus.ACCEPTED, headers)


def _only_new(request: web.Request) -> bool:
    """Whether files of the bundle that are as they were sent are left out."""
    text = request.query.get("only")
    if text not in (None, "new"):
        raise BadField("only", "invalid_only", f"only should be new, not {text[:32]!r}")
    return text is not None


async def _of_attempt(
    request: web.Request, context: Context, job: Job, *, only_new: bool
) -> web.StreamResponse:
    """What an attempt left, also one that failed or was cancelled."""
    number = int_param(request, "attempt", 1, 1, MAX_ATTEMPT)
    attempt = await context.core.database.read(jobs.attempt, AttemptKey(job.id, number))
    if attempt.result is None:
        raise nothing_left(job, attempt)
    return await send_result(
        request, context, job, attempt.result, attempt.number, only_new=only_new
    )


async def _of_children(
    request: web.Request, context: Context, job: Job, *, only_new: bool
) -> web.StreamResponse:
    """One ZIP of what the children have left by now."""
    batch = await context.core.database.read(batches.get, job.id)
    if batch is None or not batch.total:
        message = f"job {job.id} has no children"
        raise Refusal(HTTPStatus.NOT_FOUND, "no_batch", message, job_id=job.id, state=job.state)
    if job.state is JobState.CLEANED:
        raise cleaned(job)
    return await send_batch(request, context, job, only_new=only_new)


async def bundle(request: web.Request, context: Context) -> web.StreamResponse:
    """What was uploaded, from the upload on until it is cleaned."""
    job = await requested_job(request, context)
    if job.bundle is None:
        raise cleaned(job)
    file = job.bundle.file
    try:
        async with context.core.contents.local_copy(FileKind.BUNDLE, job.bundle) as path:
            return await send_file(request, path, f"job-{job.id}-bundle.zip", etag=file)
    except FileNotFoundError:
        if (await context.core.database.read(jobs.get, job.id)).bundle is None:
            raise cleaned(job) from None
        why = f"the stored bundle of job {job.id} is missing; tell the operator"
        raise Refusal(HTTPStatus.CONFLICT, "bundle_gone", why) from None


def _only_the_document(job: Job, context: Context) -> bytes:
    document = context.document(job).model_dump(mode="json")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("ferryman.json", json.dumps({"job": document}, indent=1))
    return packed.getvalue()


_ZIP: Final = "application/zip"
_ZIP_OR_PART: Final = {200: _ZIP, 206: _ZIP, 304: None}
_WHOSE: Final = {
    "attempt": whole("what this attempt left, whatever became of it", 1, MAX_ATTEMPT),
    "children": flag("1: of a parent, one ZIP of what its children have left by now"),
    "only": choice("without the files of the bundle that are there as they were sent", ("new",)),
}

ROUTES: Final = (
    Route(
        "GET",
        "/download/{id}",
        Area.JOBS,
        download,
        _ZIP_OR_PART | {200: (_ZIP, wire.StatusBody)},
        WAIT,
    ),
    Route("GET", "/download_partial/{id}", Area.JOBS, partial, _ZIP_OR_PART),
    Route(
        "GET",
        f"{JOB}/result",
        Area.JOBS,
        result,
        _ZIP_OR_PART | {202: wire.JobDoc},
        WAIT | _WHOSE,
        by_link=(Shows.JOB, Shows.RESULT),
    ),
    Route(
        "GET", f"{JOB}/bundle", Area.JOBS, bundle, _ZIP_OR_PART, by_link=(Shows.JOB, Shows.RESULT)
    ),
)
