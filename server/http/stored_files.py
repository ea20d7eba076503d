"""The files of attempts that have ended, out of their stored results. Nothing is unpacked to the
disk.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from server.domain.errors import BadField
from server.domain.jobs import Attempt, FileKind, Job, Result
from server.domain.media_types import media_type
from server.http.context import Context
from server.http.problems import Refusal
from server.http.reads import MOST_NAMES, Names
from server.http.results import missing_result
from server.http.stored_log import nothing_left
from shared.files.archives.zip_content import read_part
from shared.files.archives.zip_directory import ZipEntry
from shared.files.archives.zip_index import ListedFile, ZipIndex, spellings
from shared.files.descriptors import closing_fd
from shared.files.errors import BundleError
from shared.files.names import shown
from shared.wire import FileDoc

T = TypeVar("T")
_CHUNK: Final = 1 << 16
"""Memory for each reader."""
_BATCH: Final = 8192
"""Names that are read in one turn: 20 ms."""
_NEIGHBOURS: Final = 5_000
"""Files of a result in which those beside one are looked for."""
_MAX_SIMILAR: Final = 3
_PAGE_BYTES: Final = 2 << 20
"""Bytes of the paths on a page of a list: no page is much larger, however long they are."""


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
        while (piece := await self._context.reads.run(next, pieces, None)) is not None:
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
    async with _opened(context, job, attempt) as (path, result):
        try:
            return await context.reads.run(_list, path, result, at, limit)
        except BundleError:
            if not at:
                raise
            why = "cursor: no page of this attempt goes on there; begin again without it"
            raise BadField("cursor", "invalid_cursor", why) from None


async def scan_stored(
    context: Context, job: Job, attempt: Attempt, read: Callable[[Iterable[ListedFile]], T]
) -> T:
    """What ``read`` finds out about all files of a result. It is called in a thread.

    Raises:
        Refusal: as :func:`list_stored`.
    """
    async with _opened(context, job, attempt) as (path, result):
        names = await _names(context, path, result)
        if names is not None:
            return await context.reads.run(read, names)
        return await context.reads.run(_scan, path, result, read)


async def scan_first(
    context: Context,
    job: Job,
    attempt: Attempt,
    most: int,
    read: Callable[[Iterable[ListedFile]], T],
) -> T:
    """The same of so many files at most, the first of its table of contents."""
    async with _opened(context, job, attempt) as (path, result):
        return await context.reads.run(_scan, path, result, lambda all_: read(islice(all_, most)))


async def files_beside(
    context: Context, job: Job, attempt: Attempt, path: str
) -> tuple[str | None, str | None]:
    """The files before and behind one in its folder, by name. Of a large result none are known:
    its whole table of contents would be read for each look at a file.

    Raises:
        Refusal: as :func:`list_stored`.
    """
    async with _opened(context, job, attempt) as (local, result):
        return await context.reads.run(_beside, local, result, path)


@asynccontextmanager
async def stored_file(
    context: Context, job: Job, attempt: Attempt, path: str
) -> AsyncIterator[StoredFile]:
    """One file of a result.

    Raises:
        Refusal: there is no such file.
    """
    async with _opened(context, job, attempt) as (local, result):
        entry, similar = await _find(context, local, result, path)
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
    length = 0
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        behind = at
        for one, behind_one in ZipIndex(fd, *result.section).files(at):
            if len(found) == limit or length > _PAGE_BYTES:
                return found, behind
            behind = behind_one
            length += len(one.raw)
            when = modified_at(one.modified)
            doc = FileDoc(path=one.name, size=one.size, type=media_type(one.name), modified_at=when)
            found.append(doc)
    return found, None


def _scan(path: Path, result: Result, read: Callable[[Iterable[ListedFile]], T]) -> T:
    """Blocking."""
    return _in_index(path, result, lambda index: read(index.scan()))


async def _find(
    context: Context, path: Path, result: Result, name: str
) -> tuple[ZipEntry | None, list[str]]:
    """As :meth:`ZipIndex.find`. What is not there is looked for among the names that are kept."""
    entry = await context.reads.run(_in_index, path, result, lambda index: index.search(name))
    if entry is not None:
        return entry, []
    names = await _names(context, path, result)
    if names is not None:
        there, similar = await context.reads.run(_similar, names, name)
        if not there:
            return None, similar
    return await context.reads.run(_in_index, path, result, lambda index: index.find(name))


def _similar(names: Names, path: str) -> tuple[bool, list[str]]:
    """Whether it is there, and if not, some with the same name elsewhere. Blocking."""
    wanted, ending = spellings(path), "/" + path.rpartition("/")[2]
    similar: list[str] = []
    for one, _, _ in names:
        if one in wanted:
            return True, []
        if len(similar) < _MAX_SIMILAR and f"/{one}".endswith(ending):
            similar.append(one)
    return False, similar


async def _names(context: Context, path: Path, result: Result) -> Names | None:
    """Of all files in a result, read once for all who ask; None: too many to be kept."""
    if (known := context.reads.names(result.sha256)) is not None:
        return known

    async def read() -> Names | None:
        if (
            await context.reads.run(_in_index, path, result, lambda index: index.weight)
            > MOST_NAMES
        ):
            return None
        names, batches = Names(), _batches(path, result)
        while (some := await context.reads.run(next, batches, None)) is not None:
            names.add(some)
            if names.weight > MOST_NAMES:
                return None
        context.reads.keep(result.sha256, names)
        return names

    return await context.name_reads.read(0, result.sha256, read)


def _batches(path: Path, result: Result) -> Iterator[list[ListedFile]]:
    """Blocking, for as long as others can wait for their turn."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        files = ZipIndex(fd, *result.section).scan()
        while some := list(islice(files, _BATCH)):
            yield some


def _in_index(path: Path, result: Result, work: Callable[[ZipIndex], T]) -> T:
    """Blocking."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        return work(ZipIndex(fd, *result.section))


def _beside(path: Path, result: Result, name: str) -> tuple[str | None, str | None]:
    """Blocking."""
    prefix = name[: name.rfind("/") + 1]
    before = behind = None
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        index = ZipIndex(fd, *result.section)
        if index.count > _NEIGHBOURS:
            return None, None
        for one, _, _ in index.scan():
            if not one.startswith(prefix) or "/" in one[len(prefix) :]:
                continue
            if one < name and (before is None or one > before):
                before = one
            elif one > name and (behind is None or one < behind):
                behind = one
    return before, behind


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
