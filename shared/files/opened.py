"""Opening files in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


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
