"""Threads for what callers read out of stored files. Each caller has one place in them, so that
nobody waits behind all that another one has asked for.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Final, ParamSpec, TypeVar

from server.http.problems import Refusal
from shared.files.archives.zip_index import ListedFile
from shared.files.opened import to_end
from shared.http.authentication import CALLER

T = TypeVar("T")
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
        self.weight = 0

    def add(self, files: Iterable[ListedFile]) -> None:
        for path, size, modified in files:
            self._paths.append(path)
            self._sizes.append(size)
            self._modified.append(modified)
            self.weight += 80 + len(path) * (1 if path.isascii() else 2)

    def __iter__(self) -> Iterator[ListedFile]:
        return map(ListedFile, self._paths, self._sizes, self._modified)


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
