"""The files of an attempt: in its stored result, or at its agent while it runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

from aiohttp import web

from server.agents.ferryman_agent import FerrymanAgent
from server.domain.agents import AgentError, RefusedByAgent
from server.domain.errors import BadField
from server.domain.jobs import Attempt, Job
from server.http import documents
from server.http.context import Context
from server.http.logs import FILES, find_attempt, live_agent, nothing_left, why_not
from server.http.media_types import media_type
from server.http.params import int_param
from server.http.problems import Refusal
from server.http.reads import MOST_NAMES, Names
from server.http.results import missing_result
from server.stages.merged_results import Part, given_bundle, local_copies, opened_source
from shared.files.archives.result_index import ResultIndex
from shared.files.archives.zip_headers import EARLIEST
from shared.files.archives.zip_reader import ListedFile, ZipEntry, read_part, spellings
from shared.files.names import BundleError, shown
from shared.files.opened import closing_fd
from shared.wire import FileDoc
from shared.wire import RunningFile as FileInfo

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

    def __init__(self, context: Context, stored: _Stored, entry: ZipEntry, is_input: bool) -> None:
        self._context, self._entry = context, entry
        self._path = stored.path(is_input=is_input)
        self.size = entry.size
        self.crc: int | None = entry.crc
        what = f"{stored.part.etag}/{entry.name}"
        self.etag: str | None = hashlib.sha256(what.encode()).hexdigest()[:40]

    async def chunks(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``start`` up to, not including, ``stop``.

        Raises:
            BundleError: it is damaged.
            FileNotFoundError: the result was removed meanwhile.
        """
        pieces = _pieces(self._path, self._entry, start, stop)
        while (piece := await self._context.pools.reads.run(next, pieces, None)) is not None:
            if piece:
                yield piece


@dataclass(frozen=True, slots=True)
class _Stored:
    """What an attempt left, and where it can be read."""

    part: Part
    paths: tuple[Path, Path | None]

    @contextmanager
    def index(self) -> Iterator[ResultIndex]:
        """Blocking."""
        with opened_source(self.part, *self.paths) as source:
            yield ResultIndex(source)

    def path(self, *, is_input: bool) -> Path:
        """Where a file of it is."""
        result, bundle = self.paths
        return bundle if is_input and bundle is not None else result


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
    async with _opened(context, job, attempt) as stored:
        try:
            return await context.pools.reads.run(_list, stored, at, limit)
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
    async with _opened(context, job, attempt) as stored:
        names = await _names(context, stored.part)
        if names is not None:
            return await context.pools.reads.run(read, names)
        return await context.pools.reads.run(_scan, stored, read)


async def scan_first(
    context: Context,
    job: Job,
    attempt: Attempt,
    most: int,
    read: Callable[[Iterable[ListedFile]], T],
) -> T:
    """The same of so many files at most, the first of its table of contents."""
    async with _opened(context, job, attempt) as stored:
        return await context.pools.reads.run(_scan, stored, lambda all_: read(islice(all_, most)))


async def files_beside(
    context: Context, job: Job, attempt: Attempt, path: str
) -> tuple[str | None, str | None]:
    """The files before and behind one in its folder, by name. Of a large result none are known:
    its whole table of contents would be read for each look at a file.

    Raises:
        Refusal: as :func:`list_stored`.
    """
    async with _opened(context, job, attempt) as stored:
        return await context.pools.reads.run(_beside, stored, path)


@asynccontextmanager
async def stored_file(
    context: Context, job: Job, attempt: Attempt, path: str
) -> AsyncIterator[StoredFile]:
    """One file of a result.

    Raises:
        Refusal: there is no such file.
    """
    async with _opened(context, job, attempt) as stored:
        found, similar = await _find(context, stored, path)
        if found is None:
            raise no_such_file(job, path, similar)
        yield StoredFile(context, stored, *found)


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
async def _opened(context: Context, job: Job, attempt: Attempt) -> AsyncIterator[_Stored]:
    if attempt.result is None:
        raise nothing_left(job, attempt)
    part = Part("", attempt.result, given_bundle(job), job.bundle_folder)
    async with local_copies(context.core.contents, part) as paths:
        try:
            yield _Stored(part, paths)
        except FileNotFoundError:
            raise await missing_result(context, job, attempt.number) from None
        except BundleError as problem:
            message = (
                f"the result of job {job.id} can be downloaded as a whole only, because its files "
                f"cannot be read one by one: {problem.message}"
            )
            raise Refusal(HTTPStatus.CONFLICT, "unreadable_result", message) from problem


def _list(stored: _Stored, at: int, limit: int) -> tuple[list[FileDoc], int | None]:
    """Blocking."""
    found: list[FileDoc] = []
    length = 0
    with stored.index() as index:
        behind = at
        for one, behind_one, is_input in index.files(at):
            if len(found) == limit or length > _PAGE_BYTES:
                return found, behind
            behind = behind_one
            length += len(one.raw)
            doc = FileDoc(
                path=one.name,
                size=one.size,
                type=media_type(one.name),
                modified_at=modified_at(one.modified),
                input=is_input,
            )
            found.append(doc)
    return found, None


def _scan(stored: _Stored, read: Callable[[Iterable[ListedFile]], T]) -> T:
    """Blocking."""
    with stored.index() as index:
        return read(index.scan())


async def _find(
    context: Context, stored: _Stored, name: str
) -> tuple[tuple[ZipEntry, bool] | None, list[str]]:
    """As :meth:`ResultIndex.find`. What is not there is looked for among the names that are
    kept.
    """
    found = await context.pools.reads.run(_in_index, stored, lambda index: index.search(name))
    if found is not None:
        return found, []
    names = await _names(context, stored.part)
    if names is not None:
        there, similar = await context.pools.reads.run(_similar, names, name)
        if not there:
            return None, similar
    return await context.pools.reads.run(_in_index, stored, lambda index: index.find(name))


def _similar(names: Names, path: str) -> tuple[bool, list[str]]:
    """Whether it is there, and if not, some with the same name elsewhere. Blocking."""
    wanted, ending = spellings(path), "/" + path.rpartition("/")[2]
    similar: list[str] = []
    for one, *_ in names:
        if one in wanted:
            return True, []
        if len(similar) < _MAX_SIMILAR and f"/{one}".endswith(ending):
            similar.append(one)
    return False, similar


async def _names(context: Context, part: Part) -> Names | None:
    """Of all files in a result, read once for all who ask; None: too many to be kept."""
    key = part.etag
    if (known := context.pools.reads.names(key)) is not None:
        return known

    async def read_all(stored: _Stored) -> Names | None:
        if (
            await context.pools.reads.run(_in_index, stored, lambda index: index.weight)
            > MOST_NAMES
        ):
            return None
        names, batches = Names(), _batches(stored)
        while (some := await context.pools.reads.run(next, batches, None)) is not None:
            names.add(some)
            if names.weight > MOST_NAMES:
                return None
        context.pools.reads.keep(key, names)
        return names

    async def read() -> Names | None:  # with copies of its own: it may outlast who asks
        async with local_copies(context.core.contents, part) as paths:
            return await read_all(_Stored(part, paths))

    return await context.pools.name_reads.read(0, key, read)


def _batches(stored: _Stored) -> Iterator[list[ListedFile]]:
    """Blocking, for as long as others can wait for their turn."""
    with stored.index() as index:
        files = index.scan()
        while some := list(islice(files, _BATCH)):
            yield some


def _in_index(stored: _Stored, work: Callable[[ResultIndex], T]) -> T:
    """Blocking."""
    with stored.index() as index:
        return work(index)


def _beside(stored: _Stored, name: str) -> tuple[str | None, str | None]:
    """Blocking."""
    prefix = name[: name.rfind("/") + 1]
    before = behind = None
    with stored.index() as index:
        if index.count > _NEIGHBOURS:
            return None, None
        for one, *_ in index.scan():
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
    """DOS date and time, which our agents write in UTC; None: it says none, as in a bundle."""
    if dos == EARLIEST:
        return None
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


MAX_FILES: Final = 500
"""In one answer of an agent."""
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


class RunningFile:
    """One file.

    Attributes:
        size: bytes when it was asked for.
        etag, crc: None: it may change at any time.
    """

    etag: str | None = None
    crc: int | None = None

    def __init__(
        self, agent: FerrymanAgent, job: Job, attempt: Attempt, part: str, size: int
    ) -> None:
        self._agent, self._job, self._attempt = agent, job, attempt
        self._part, self.size = part, size

    async def chunks(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``start`` up to, not including, ``stop``; fewer where it has changed.

        Raises:
            Refusal: it cannot be read now.
        """
        left = stop - start
        try:
            chunks = self._agent.content(self._job, self._part, offset=start, stop=stop)
            async with aclosing(chunks) as some:
                async for chunk in some:
                    yield chunk[:left]
                    left -= min(left, len(chunk))
        except AgentError as problem:
            raise why_not(self._job, self._attempt, problem, FILES) from problem


async def list_running(
    agent: FerrymanAgent, job: Job, attempt: Attempt, after: str, limit: int
) -> tuple[list[FileDoc], str | None]:
    """Some files of an attempt, behind the path ``after``.

    Returns:
        The files, and the path behind which others follow; None: there are no more.

    Raises:
        Refusal: they cannot be read now.
    """
    try:
        found = await agent.list_files(job, after, min(limit, MAX_FILES))
    except AgentError as problem:
        raise why_not(job, attempt, problem, FILES) from problem
    last = found.files[-1].path if found.files and found.more else None
    return [_doc(one) for one in found.files], last


@asynccontextmanager
async def running_file(
    agent: FerrymanAgent, job: Job, attempt: Attempt, path: str
) -> AsyncIterator[RunningFile]:
    """One file of an attempt.

    Raises:
        Refusal: there is none, or it cannot be read now.
    """
    if path in (".", ".."):  # the address at the agent would be another one
        raise no_such_file(job, path)
    try:
        part = f"files/{quote(path, safe='')}"
        size = await agent.size(job, part)
    except AgentError as problem:
        if isinstance(problem, RefusedByAgent) and problem.code == "file_not_found":
            why = str(problem).removeprefix(f"{path}: ")
            raise no_such_file(job, path, why=why) from None
        raise why_not(job, attempt, problem, FILES) from problem
    yield RunningFile(agent, job, attempt, part, size)


def _doc(one: FileInfo) -> FileDoc:
    when = datetime.fromtimestamp(min(max(0.0, one.modified), _LATEST), UTC)
    return FileDoc(path=one.path, size=one.size, type=media_type(one.path), modified_at=when)


MAX_ATTEMPT: Final = 2**31 - 1


class OpenedFile(Protocol):
    """A file of an attempt.

    Attributes:
        size: bytes.
        etag: of its content, without quotes; None: it may change.
        crc: CRC-32 of its content; None: it is not known.
    """

    @property
    def size(self) -> int: ...

    @property
    def etag(self) -> str | None: ...

    @property
    def crc(self) -> int | None: ...

    def chunks(self, start: int, stop: int) -> AsyncGenerator[bytes, None]: ...


async def requested_attempt(
    request: web.Request, context: Context, job: Job, number: int | None = None
) -> Attempt:
    """The attempt that is asked for, or the latest one.

    Raises:
        Refusal: none has started.
        BadField, NoSuchAttempt
    """
    if "attempt" in request.query:
        number = int_param(request, "attempt", 1, 1, MAX_ATTEMPT)
    attempt = await find_attempt(context, job, number)
    if attempt is not None:
        return attempt
    if job.deferred:
        message = f"job {job.id} is the parent of a batch: its children have the files"
        raise Refusal(HTTPStatus.CONFLICT, "files_of_children", message)
    message = f"job {job.id} is {job.state}, and no attempt of it has started: {job.message}"
    headers = documents.when_to_ask_again(job, context.core.clock.now())
    raise Refusal(HTTPStatus.CONFLICT, "not_started", message, headers=headers)


def opened_file(
    context: Context, job: Job, attempt: Attempt, path: str
) -> AbstractAsyncContextManager[OpenedFile]:
    """One file of an attempt.

    Raises:
        Refusal: there is none, or it cannot be read now; the latter on entering, too.
    """
    agent = live_agent(context, job, attempt, FILES)
    if agent is None:
        return stored_file(context, job, attempt, path)
    return running_file(agent, job, attempt, path)
