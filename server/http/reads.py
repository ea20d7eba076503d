"""How much callers may have at once: threads that read for them, snapshots, uploads."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter, OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
)
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import chain, repeat
from pathlib import Path
from typing import Final, Generic, ParamSpec, TypeVar

from aiohttp import StreamReader

from server.http.problems import Refusal
from server.settings.load import LiveSettings
from server.storage.scratch import Scratch, ScratchFile
from shared.clock import Clock
from shared.files.archives.zip_reader import ListedFile
from shared.files.opened import to_end
from shared.http.authentication import CALLER
from shared.multipart.receive import Threads
from shared.units.sizes import say_count, say_size

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages that can be sent now."""

    data: bytes
    reached: int
    """Everything up to this number was looked at."""
    more: bool = False
    """There is more already."""
    last: bool = False
    """There will be no more."""


class SharedReads(Generic[T]):
    """Listeners that a change has woken wait for one read together.

    A read is shared only until it has ended, and only by those for whom nothing was committed
    since it began: nobody misses what woke them.
    """

    def __init__(self) -> None:
        self._reads: dict[Hashable, tuple[int, asyncio.Task[T]]] = {}

    async def read(self, version: int, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What ``read`` gives, for everybody with this key.

        Args:
            version: of what is read: another number after each commit.
            key: all that the result depends on, and who may see it.

        Raises:
            Whatever ``read`` raises.
        """
        known = self._reads.get(key)
        if known is not None and known[0] == version:
            task = known[1]
        else:
            task = asyncio.create_task(_awaited(read))
            self._reads[key] = version, task
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)  # one listener that goes away does not end it for others

    def _forget(self, key: Hashable, done: asyncio.Task[T]) -> None:
        known = self._reads.get(key)
        if known is not None and known[1] is done:
            del self._reads[key]
        if not done.cancelled():
            done.exception()  # it was raised for those who still wait


async def _awaited(read: Callable[[], Awaitable[T]]) -> T:
    return await read()


P = ParamSpec("P")
_THREADS: Final = 2
"""More would only take turns with the event loop: what they do holds the interpreter."""
_WAITING_SEARCHES: Final = 8
_LOG_OPENINGS: Final = 16
_BATCH_ZIPS: Final = 4
"""Of one caller."""
MOST_NAMES: Final = 32 << 20
"""Bytes, of the names in all results that are kept."""


class _Turns:
    """Of one caller."""

    def __init__(self, at_once: int) -> None:
        self.free = asyncio.Semaphore(at_once)
        self.callers = 0


class Each:
    """So many at once of each caller. Others of the same caller wait.

    Args:
        waiting: so many, at most; None: any number.
        code, what: of the refusal of those that are too many.
    """

    def __init__(
        self, at_once: int = 1, waiting: int | None = None, code: str = "", what: str = ""
    ) -> None:
        self._at_once, self._code, self._what = at_once, code, what
        self._most = None if waiting is None else at_once + waiting
        self._turns: dict[str, _Turns] = {}

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises:
        Refusal: too many wait.
        """
        caller = CALLER.get()
        mine = self._turns.setdefault(caller, _Turns(self._at_once))
        if mine.callers == self._most:
            message = f"{mine.callers} {self._what} of yours are under way: try again later"
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, self._code, message, retry_after_s=5)
        mine.callers += 1
        try:
            async with mine.free:
                yield
        finally:
            mine.callers -= 1
            if not mine.callers:
                del self._turns[caller]


class Names:
    """The files of a result, as a list shows them.

    Attributes:
        weight: bytes of memory, about.
    """

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._sizes, self._modified = array("Q"), array("Q")
        self._new = 0
        """So many come first; the others are as they were sent."""
        self.weight = 0

    def add(self, files: Iterable[ListedFile]) -> None:
        for path, size, modified, is_input in files:
            self._new += not is_input
            self._paths.append(path)
            self._sizes.append(size)
            self._modified.append(modified)
            self.weight += 80 + len(path) * (1 if path.isascii() else 2)

    def __iter__(self) -> Iterator[ListedFile]:
        sent = chain(repeat(False, self._new), repeat(True))
        return map(ListedFile, self._paths, self._sizes, self._modified, sent)


class Reads:
    """The threads, and the names in the results that were looked at last.

    Attributes:
        searches: in logs: each reads many times what it shows.
        lists: of hundreds of jobs.
        log_openings: followers of logs that begin: each asks the store and an agent.
        batch_zips: each has its table of contents on the disk until it is sent.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "reads")
        self._free = asyncio.Semaphore(_THREADS)
        self._each = Each()
        self._names: OrderedDict[str, Names] = OrderedDict()
        self.searches = Each(1, _WAITING_SEARCHES, "too_many_searches", "searches")
        self.lists, self.log_openings = Each(), Each(_LOG_OPENINGS)
        self.batch_zips = Each(_BATCH_ZIPS, 0, "too_many_batch_zips", "ZIPs of batches")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``work`` returns; it is called in a thread, when it is the caller's turn."""
        async with self._each.turn(), self._free:
            return await to_end(partial(work, *args, **kwargs), self._threads)

    def names(self, sha256: str) -> Names | None:
        """Those in the result with this digest; None: they are not kept."""
        if (found := self._names.get(sha256)) is not None:
            self._names.move_to_end(sha256)
        return found

    def keep(self, sha256: str, names: Names) -> None:
        """In place of those that were not asked for for the longest time."""
        self._names[sha256] = names
        while sum(one.weight for one in self._names.values()) > MOST_NAMES:
            self._names.popitem(last=False)

    def close(self) -> None:
        self._threads.shutdown(wait=False)


MAX_SNAPSHOTS: Final = 16
"""Snapshots on the disk at once. They cannot be removed before they have been sent."""
MAX_OF_CALLER: Final = 4
MAX_OF_JOB: Final = 2
_FRESH_S: Final = 5.0

Make = Callable[[ScratchFile], Coroutine[None, None, None]]


class _Snapshot:
    """A file, and who reads it."""

    def __init__(self, made_at: float, file: ScratchFile, make: Make) -> None:
        self.made_at, self.readers, self.caller = made_at, 0, CALLER.get()
        self._file, self.path = file, file.path
        self.making = asyncio.ensure_future(make(file))

    def may_be_shared(self, now: float) -> bool:
        return not self.making.done() or now - self.made_at < _FRESH_S

    async def remove(self) -> None:
        self.making.cancel()
        await asyncio.gather(self.making, return_exceptions=True)
        await self._file.__aexit__()


class Snapshots:
    """The snapshots that are being made or sent."""

    def __init__(self, scratch: Scratch, clock: Clock) -> None:
        self._scratch, self._clock = scratch, clock
        self._of_job: dict[int, list[_Snapshot]] = {}

    @asynccontextmanager
    async def snapshot(self, job_id: int, make: Make) -> AsyncIterator[Path]:
        """A snapshot of the job, removed after its last reader has read it.

        Args:
            make: writes a snapshot to the file that it is given. Not called if there is one that is
                at most a few seconds old.

        Raises:
            Refusal: too many are being sent.
            Exception: what ``make`` raises; every reader that waits for it gets it.
        """
        mine = self._of_job.setdefault(job_id, [])
        try:
            snapshot = self._choose(mine, make)
        finally:
            if not mine:
                del self._of_job[job_id]
        snapshot.readers += 1
        try:
            # Shielded, because a reader that goes away must not cancel it for the others.
            await asyncio.shield(snapshot.making)
            yield snapshot.path
        finally:
            snapshot.readers -= 1
            if not snapshot.readers:
                mine.remove(snapshot)
                if not mine:
                    del self._of_job[job_id]
                await snapshot.remove()

    def _choose(self, mine: list[_Snapshot], make: Make) -> _Snapshot:
        now = self._clock.monotonic()
        if mine and (mine[-1].may_be_shared(now) or len(mine) >= MAX_OF_JOB):
            return mine[-1]
        callers = [one.caller for snapshots in self._of_job.values() for one in snapshots]
        of_caller = callers.count(CALLER.get())
        if len(callers) >= MAX_SNAPSHOTS or of_caller >= MAX_OF_CALLER:
            count = f"{len(callers)} snapshots of running jobs"
            if of_caller >= MAX_OF_CALLER:
                count = f"{of_caller} snapshots that you asked for"
            message = f"{count} are being sent, which is the most"
            status = HTTPStatus.SERVICE_UNAVAILABLE
            raise Refusal(status, "too_many_snapshots", message, retry_after_s=5)
        mine.append(snapshot := _Snapshot(now, self._scratch.file(), make))
        return snapshot


RECEIVING_THREADS: Final = 8
EXPANSIONS: Final = 2
"""Archives that are expanded at once; of one user, one."""


@dataclass(slots=True)
class _UserLock:
    """The lock of one user's expansions, and how many hold it or wait for it."""

    lock: asyncio.Lock
    waiting: int = 0


class UploadThreads:
    """Threads that write the bytes of uploads, and threads that expand archives."""

    def __init__(self) -> None:
        self._receiving = ThreadPoolExecutor(RECEIVING_THREADS, "upload")
        self._expanding = ThreadPoolExecutor(EXPANSIONS, "expand")
        self._room = asyncio.Semaphore(EXPANSIONS)
        self._parsing = asyncio.Lock()
        self._user_locks: dict[str, _UserLock] = {}

    def for_upload(self, user: str) -> Threads:
        """The threads of one upload.

        Args:
            user: as far as it is known; the form may name it.
        """

        def expanding(fields: dict[str, str]) -> AbstractAsyncContextManager[Executor]:
            return self._expansion(fields.get("user_id", user))

        return Threads(self._receiving, expanding, self._parsing)

    def close(self) -> None:
        """Wait for the work in flight."""
        self._receiving.shutdown()
        self._expanding.shutdown()

    @asynccontextmanager
    async def _expansion(self, user: str) -> AsyncIterator[Executor]:
        user_lock = self._user_locks.setdefault(user, _UserLock(asyncio.Lock()))
        user_lock.waiting += 1
        try:
            # The user's own lock first: an upload that waits for it takes no room from other users.
            async with user_lock.lock, self._room:
                yield self._expanding
        finally:
            user_lock.waiting -= 1
            if not user_lock.waiting:
                del self._user_locks[user]


AT_ONCE: Final = 256
"""Uploads in all: each may hold some files open and 1 MiB in memory."""
LEAST_RATE: Final = 1024
"""Bytes a second: slower than any line, and fast enough to show that somebody sends."""
PATIENCE_S: Final = 30.0
"""For which an upload may be slower. Time in which our own disk is behind does not count."""
_RETRY_S: Final = 1


class UploadInFlight:
    """One upload.

    Attributes:
        user: whom it counts against; None: not known yet.
    """

    def __init__(self, limits: UploadLimits, content: StreamReader) -> None:
        self._limits, self._content = limits, content
        self.user: str | None = None
        self._waiting = False
        self._came = 0
        self._since: float | None = None

    def count_for(self, user: str) -> None:
        """Count it as one of the user's, once.

        Raises:
            Refusal: the user has too many uploads now.
        """
        if self.user is None:
            self._limits.count(user)
            self.user = user

    async def body(self) -> AsyncIterator[bytes]:
        """The chunks of the body as they come.

        Raises:
            Refusal: 408: they come too slowly.
        """
        chunks = self._content.iter_any()
        while True:
            self._waiting = True
            try:
                chunk = await anext(chunks, None)
            finally:
                self._waiting = False
            if chunk is None:
                return
            self._came += len(chunk)
            yield chunk
            del chunk  # not to be held while the next one is waited for

    def check(self, now: float) -> bool:
        """Cut it off if less than LEAST_RATE bytes a second came for PATIENCE_S; whether.

        Only time in which we wait for its sender counts.
        """
        if not self._waiting or self._since is None:
            self._since, self._came = now, 0
            return False
        waited = now - self._since
        if waited < PATIENCE_S:
            return False
        if self._came >= LEAST_RATE * waited:
            self._since, self._came = now, 0
            return False
        self._content.set_exception(
            Refusal(
                HTTPStatus.REQUEST_TIMEOUT,
                "upload_too_slow",
                f"the upload was cut off: less than {say_size(LEAST_RATE)} a second of it came for "
                f"{PATIENCE_S:.0f} seconds",
            )
        )
        return True


class UploadLimits:
    """Of all uploads in flight; also the sweep that cuts off slow ones."""

    def __init__(self, clock: Clock, settings: LiveSettings) -> None:
        self._clock, self._settings = clock, settings
        self._in_flight: set[UploadInFlight] = set()
        self._of_user: Counter[str] = Counter()

    @contextmanager
    def admit(self, content: StreamReader) -> Iterator[UploadInFlight]:
        """A context for the upload of this body.

        Raises:
            Refusal: there are too many uploads now.
        """
        if len(self._in_flight) >= AT_ONCE:
            raise _too_many(f"{AT_ONCE} uploads are under way, the most this server takes")
        upload = UploadInFlight(self, content)
        self._in_flight.add(upload)
        try:
            yield upload
        finally:
            self._in_flight.remove(upload)
            if upload.user is not None:
                self._of_user[upload.user] -= 1
                if not self._of_user[upload.user]:
                    del self._of_user[upload.user]

    def count(self, user: str) -> None:
        """One more of the user. Raises Refusal."""
        most = self._settings.allowances.of(user).uploads
        if self._of_user[user] >= most:
            raise _too_many(
                f"user {user} has {say_count(most, 'upload')} under way, "
                "the most this server takes of one user"
            )
        self._of_user[user] += 1

    @property
    def under_way(self) -> int:
        """How many uploads there are, of all users."""
        return len(self._in_flight)

    def of_user(self, user: str) -> int:
        """How many uploads of the user are under way."""
        return self._of_user[user]

    async def run_once(self) -> int:
        """Cut off those that are too slow; how many."""
        now = self._clock.monotonic()
        return sum(upload.check(now) for upload in list(self._in_flight))


def _too_many(message: str) -> Refusal:
    return Refusal(
        HTTPStatus.TOO_MANY_REQUESTS, "too_many_uploads", message, retry_after_s=_RETRY_S
    )


class Pools:
    """What callers share, and how much of it each may have.

    Attributes:
        event_reads: of those who follow the events of all jobs.
        name_reads: of those who want the names in a large result.
    """

    def __init__(self, scratch: Scratch, clock: Clock, settings: LiveSettings) -> None:
        self.reads, self.snapshots = Reads(), Snapshots(scratch, clock)
        self.uploads, self.upload_threads = UploadLimits(clock, settings), UploadThreads()
        self.event_reads = SharedReads[Messages]()
        self.name_reads = SharedReads[Names | None]()

    def close(self) -> None:
        """End the threads."""
        self.reads.close()
        self.upload_threads.close()
