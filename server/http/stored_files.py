"""The files of attempts that have ended, out of their stored results. Nothing is unpacked to the
disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar

from server.domain.attempts import Attempt
from server.domain.errors import BadField
from server.domain.files import FileKind
from server.domain.jobs import Job, Result
from server.domain.media_types import media_type
from server.http.context import Context
from server.http.problems import Refusal
from server.http.results import missing_result
from server.http.stored_log import nothing_left
from shared.files.archives.zip_content import read_part
from shared.files.archives.zip_directory import ZipEntry
from shared.files.archives.zip_index import ListedFile, ZipIndex
from shared.files.descriptors import closing_fd
from shared.files.errors import BundleError
from shared.files.names import shown
from shared.wire import FileDoc

T = TypeVar("T")
_CHUNK: Final = 1 << 18
"""Memory for each reader."""


class StoredFile:
    """One file of a result.

    Attributes:
        size: bytes, unpacked.
        etag: of its content, without quotes.
        crc: CRC-32 of its content.
    """

    def __init__(self, context: Context, result: Result, path: Path, entry: ZipEntry) -> None:
        self._context, self._path, self._entry = context, path, entry
        self.size = entry.size
        self.crc: int | None = entry.crc
        what = f"{result.sha256}/{entry.name}"
        self.etag: str | None = hashlib.sha256(what.encode()).hexdigest()[:40]

    async def chunks(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``start`` up to, not including, ``stop``.

        Raises:
            BundleError: it is damaged.
            FileNotFoundError: the result was removed meanwhile.
        """
        pieces = _pieces(self._path, self._entry, start, stop)
        while True:
            async with self._context.unpacking:
                piece = await asyncio.to_thread(next, pieces, None)
            if piece is None:
                return
            if piece:
                yield piece


async def list_stored(
    context: Context, job: Job, attempt: Attempt, at: int, limit: int
) -> tuple[list[FileDoc], int | None]:
    """Some files of a result, from a position of its table of contents on.

    Returns:
        The files, and the position of those that follow; None: there are no more.

    Raises:
        BadField: no file is listed at the position.
        Refusal: there is no result, or none that can be read.
    """
    async with _opened(context, job, attempt) as (path, result), context.unpacking:
        try:
            return await asyncio.to_thread(_list, path, result, at, limit)
        except BundleError:
            if not at:
                raise
            why = "cursor: no page of this attempt goes on there; begin again without it"
            raise BadField("cursor", "invalid_cursor", why) from None


async def scan_stored(
    context: Context, job: Job, attempt: Attempt, read: Callable[[Iterator[ListedFile]], T]
) -> T:
    """What ``read`` finds out about all files of a result. It is called in a thread.

    Raises:
        Refusal: as :func:`list_stored`.
    """
    async with _opened(context, job, attempt) as (path, result), context.unpacking:
        return await asyncio.to_thread(_scan, path, result, read)


@asynccontextmanager
async def stored_file(
    context: Context, job: Job, attempt: Attempt, path: str
) -> AsyncIterator[StoredFile]:
    """One file of a result.

    Raises:
        Refusal: there is no such file.
    """
    async with _opened(context, job, attempt) as (local, result):
        async with context.unpacking:
            entry, similar = await asyncio.to_thread(_find, local, result, path)
        if entry is None:
            raise no_such_file(job, path, similar)
        yield StoredFile(context, result, local, entry)


def no_such_file(job: Job, path: str, similar: Sequence[str] = (), why: str = "") -> Refusal:
    """Refuse a path, and name files that may be meant."""
    message = f"job {job.id} has no file {shown(path)}"
    if why:
        message += f" now: {why}"
    elif similar:
        message += f"; there is {' and '.join(shown(one) for one in similar)}"
    else:
        message += f"; /api/v1/jobs/{job.id}/files lists those that it has"
    return Refusal(HTTPStatus.NOT_FOUND, "file_not_found", message)


@asynccontextmanager
async def _opened(
    context: Context, job: Job, attempt: Attempt
) -> AsyncIterator[tuple[Path, Result]]:
    result = attempt.result
    if result is None:
        raise nothing_left(job, attempt)
    async with context.storage.local_copy(FileKind.RESULT, result.file) as path:
        try:
            yield path, result
        except FileNotFoundError:
            raise await missing_result(context, job, attempt.number) from None
        except BundleError as problem:
            message = (
                f"the result of job {job.id} can be downloaded as a whole only, because its files "
                f"cannot be read one by one: {problem.message}"
            )
            raise Refusal(HTTPStatus.CONFLICT, "unreadable_result", message) from problem


def _list(path: Path, result: Result, at: int, limit: int) -> tuple[list[FileDoc], int | None]:
    """Blocking."""
    found: list[FileDoc] = []
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        behind = at
        for one, behind_one in ZipIndex(fd, *result.section).files(at):
            if len(found) == limit:
                return found, behind
            behind = behind_one
            when = modified_at(one.modified)
            doc = FileDoc(path=one.name, size=one.size, type=media_type(one.name), modified_at=when)
            found.append(doc)
    return found, None


def _scan(path: Path, result: Result, read: Callable[[Iterator[ListedFile]], T]) -> T:
    """Blocking."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        return read(ZipIndex(fd, *result.section).scan())


def _find(path: Path, result: Result, name: str) -> tuple[ZipEntry | None, list[str]]:
    """Blocking."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        return ZipIndex(fd, *result.section).find(name)


def _pieces(path: Path, entry: ZipEntry, start: int, stop: int) -> Iterator[bytes]:
    """Blocking."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        yield from read_part(fd, entry, start, stop, _CHUNK)


def modified_at(dos: int) -> datetime | None:
    """DOS date and time, which our agents write in UTC."""
    date, time = dos >> 16, dos & 0xFFFF
    try:
        return datetime(
            1980 + (date >> 9),
            date >> 5 & 15,
            date & 31,
            time >> 11,
            time >> 5 & 63,
            (time & 31) * 2,
            tzinfo=UTC,
        )
    except ValueError:
        return None
