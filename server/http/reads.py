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
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, ParamSpec, TypeVar

from server.http.problems import Refusal
from shared.files.archives.zip_index import ListedFile
from shared.http.authentication import CALLER

T = TypeVar("T")
P = ParamSpec("P")
_THREADS: Final = 2
"""More would only take turns with the event loop: what they do holds the interpreter."""
_WAITING_SEARCHES: Final = 8
"""Of one caller."""
MOST_NAMES: Final = 32 << 20
"""Bytes, of the names in all results that are kept."""


@dataclass(slots=True)
class _Turns:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0


class OneEach:
    """One at a time of each caller. Others of the same caller wait.

    Args:
        waiting: so many, at most; None: any number.
    """

    def __init__(self, waiting: int | None = None) -> None:
        self._waiting = waiting
        self._turns: dict[str, _Turns] = {}

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises:
        Refusal: too many wait.
        """
        caller = CALLER.get()
        mine = self._turns.setdefault(caller, _Turns())
        if self._waiting is not None and mine.callers > self._waiting:
            message = f"{mine.callers} searches of yours are under way or wait: try again later"
            status = HTTPStatus.TOO_MANY_REQUESTS
            raise Refusal(status, "too_many_searches", message, retry_after_s=5)
        mine.callers += 1
        try:
            async with mine.lock:
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
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "reads")
        self._free = asyncio.Semaphore(_THREADS)
        self._each = OneEach()
        self._names: OrderedDict[str, Names] = OrderedDict()
        self.searches, self.lists = OneEach(_WAITING_SEARCHES), OneEach()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``work`` returns; it is called in a thread, when it is the caller's turn."""
        async with self._each.turn(), self._free:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

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
