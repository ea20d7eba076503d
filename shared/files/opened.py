"""Opening files in threads, and using them there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

_READ: Final = 1 << 16


@contextlib.contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Close the descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def read_now(path: str) -> bytes:
    """What a file of ``/proc`` or of a cgroup says now. Raises OSError."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        pieces = []
        while piece := os.read(fd, _READ):
            pieces.append(piece)
        return b"".join(pieces)


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)
R = TypeVar("R")


@asynccontextmanager
async def opened(
    open_file: Callable[[], T], gone: Callable[[], object] = lambda: None
) -> AsyncIterator[T]:
    """What ``open_file`` returns in a thread. It is closed at the end, and also if the caller is
    cancelled while the thread still opens it, even if the event loop ends meanwhile.

    Args:
        gone: called once it is closed for a caller that was cancelled: for who makes a file, and
            has removed it before it was there.
    """
    opening = _Opening(open_file, gone)
    try:
        file = await asyncio.to_thread(opening.run)
    except asyncio.CancelledError:
        opening.leave()
        raise
    try:
        yield file
    finally:
        file.close()


async def to_end(work: Callable[[], R], threads: Executor | None = None) -> R:
    """What ``work`` returns in a thread. A caller that is cancelled meanwhile waits for its end:
    only then may a file that it uses be closed, whose number the next file gets.
    """
    doing = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([doing])
        raise


class _Opening(Generic[T]):
    """Whoever is last closes the file: the thread that opens it, or the caller that leaves."""

    def __init__(self, open_file: Callable[[], T], gone: Callable[[], object]) -> None:
        self._open_file, self._gone = open_file, gone
        self._lock, self._left = threading.Lock(), False
        self._file: T | None = None

    def run(self) -> T:
        file = self._open_file()
        with self._lock:
            self._file = file
            left = self._left
        if left:
            self._close(file)
        return file

    def leave(self) -> None:
        with self._lock:
            self._left = True
            file = self._file
        if file is not None:
            self._close(file)

    def _close(self, file: T) -> None:
        file.close()
        self._gone()
