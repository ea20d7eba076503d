"""The attempts of a job: what each one used and said, and the result and logs that it left."""

from __future__ import annotations

import asyncio
import zipfile
import zlib
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import IO, Final

from aiohttp import web
from pydantic import BaseModel

from server.api import documents
from server.api.context import Context
from server.api.downloads import cleaned, missing_result, send_result
from server.api.params import attempt_number
from server.api.problems import Refusal
from server.api.requested_job import requested_job
from server.domain.attempts import Attempt
from server.domain.files import FileKind
from server.domain.jobs import Job
from shared.files.section import open_section
from shared.ids import AttemptKey
from shared.wire import AttemptDoc, AttemptPage, JobState

_STREAMS: Final = ("stdout", "stderr")
_CHUNK: Final = 1 << 18
_RECEIPT: Final = "ferryman.json"
_NO_LOG: Final = (zipfile.BadZipFile, ValueError, KeyError, RuntimeError, EOFError, zlib.error)
"""Reading it raises RuntimeError where it is encrypted or packed in a way that is not known."""
_MAX_RECEIPT: Final = 1 << 20
"""Bytes. Every result has one; it names the logs."""


class Receipt(BaseModel):
    """Of ``ferryman.json``: what is read of it here."""

    logs: dict[str, str]


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
        raise _nothing_left(job, attempt)
    return await send_result(request, context, job, attempt.result, attempt.number)


async def log(request: web.Request, context: Context) -> web.StreamResponse:
    """``stdout`` or ``stderr`` of an attempt, out of its stored result."""
    job, attempt = await _requested(request, context)
    stream = request.match_info["stream"]
    if stream not in _STREAMS:
        raise Refusal(HTTPStatus.NOT_FOUND, "no_log", f"a log is {' or '.join(_STREAMS)}")
    if attempt.result is None:
        raise _nothing_left(job, attempt)
    copy = context.storage.local_copy(FileKind.RESULT, attempt.result.file)
    async with AsyncExitStack() as stack:
        try:
            path = await stack.enter_async_context(copy)
            file = await asyncio.to_thread(open_section, path, *attempt.result.section)
            stack.enter_context(file)
            archive = stack.enter_context(await asyncio.to_thread(zipfile.ZipFile, file))
            content, size = await asyncio.to_thread(_open_log, archive, stream)
            stack.enter_context(content)
        except FileNotFoundError:
            raise await missing_result(context, job, attempt.number) from None
        except _NO_LOG as problem:
            raise Refusal(
                HTTPStatus.CONFLICT,
                "no_log",
                f"the result of the attempt has no such log: {problem}",
            ) from problem
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/plain; charset=utf-8",
                "Content-Length": str(size),
                "X-Content-Type-Options": "nosniff",
            }
        )
        await response.prepare(request)
        if request.method != "HEAD":
            while chunk := await asyncio.to_thread(content.read, _CHUNK):
                await response.write(chunk)
                size -= len(chunk)
            if size:
                raise EOFError(f"the log of attempt {attempt.number} ends too early")
    return response


async def _requested(request: web.Request, context: Context) -> tuple[Job, Attempt]:
    """The attempt that the path names, and its job."""
    job = await requested_job(request, context)
    return job, await context.jobs.attempt(AttemptKey(job.id, attempt_number(request)))


def _nothing_left(job: Job, attempt: Attempt) -> Refusal:
    if job.state is JobState.CLEANED:
        return cleaned(job)
    if attempt.ended_at is None:
        why = f"attempt {attempt.number} of job {job.id} has not ended; /download_partial/{job.id}"
        return Refusal(HTTPStatus.CONFLICT, "not_ended", f"{why} shows what there is now")
    why = f"attempt {attempt.number} of job {job.id} left nothing: {attempt.message}"
    return Refusal(HTTPStatus.CONFLICT, "no_result", why)


def _open_log(archive: zipfile.ZipFile, stream: str) -> tuple[IO[bytes], int]:
    """Its content and size. Blocking.

    Raises:
        OSError
        *_NO_LOG: the result has none.
    """
    with archive.open(_RECEIPT) as receipt:
        logs = Receipt.model_validate_json(receipt.read(_MAX_RECEIPT)).logs
    member = archive.getinfo(logs[stream])
    return archive.open(member), member.file_size
