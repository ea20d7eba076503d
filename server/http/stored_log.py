"""The logs of attempts that have ended, out of their stored results."""

from __future__ import annotations

import asyncio
import zipfile
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import IO, Final

from pydantic import BaseModel

from server.domain.attempts import Attempt
from server.domain.files import FileKind
from server.domain.jobs import Job
from server.http.context import Context
from server.http.problems import Refusal
from server.http.results import cleaned, missing_result
from shared.files.opened import opened
from shared.files.section import open_section
from shared.wire import JobState

STREAMS: Final = ("stdout", "stderr")
LOG_HEADERS: Final = {
    "Content-Type": "text/plain; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
}
_CHUNK: Final = 1 << 15
"""As server-sent events it takes several times as much memory, for each reader that is slow."""
_RECEIPT: Final = "ferryman.json"
_NO_LOG: Final = (zipfile.BadZipFile, ValueError, KeyError, RuntimeError, EOFError, zlib.error)
"""Reading it raises RuntimeError where it is encrypted or packed in a way that is not known."""
_MAX_RECEIPT: Final = 1 << 20
"""Bytes. Every result has one; it names the logs."""


class Receipt(BaseModel):
    """Of ``ferryman.json``: what is read of it here."""

    logs: dict[str, str]


class StoredLog:
    """A log, opened. ``size`` is in bytes."""

    def __init__(self, content: IO[bytes], size: int) -> None:
        self._content, self.size = content, size

    async def chunks(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``start`` to ``stop``.

        Raises:
            EOFError, OSError, zlib.error, zipfile.BadZipFile: it is damaged.
        """
        await asyncio.to_thread(self._content.seek, start)
        left = stop - start
        while left and (chunk := await asyncio.to_thread(self._content.read, min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk
        if left:
            raise EOFError("a log ends too early")


@asynccontextmanager
async def stored_log(
    context: Context, job: Job, attempt: Attempt, stream: str
) -> AsyncIterator[StoredLog]:
    """The log of an attempt.

    Raises:
        Refusal: why there is none.
    """
    if attempt.result is None:
        raise nothing_left(job, attempt)
    copy = context.storage.local_copy(FileKind.RESULT, attempt.result.file)
    async with AsyncExitStack() as stack:
        try:
            path = await stack.enter_async_context(copy)
            opening = opened(partial(open_section, path, *attempt.result.section))
            file = await stack.enter_async_context(opening)
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
        yield StoredLog(content, size)


def nothing_left(job: Job, attempt: Attempt) -> Refusal:
    """Why there is no result."""
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
