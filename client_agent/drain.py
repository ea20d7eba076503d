"""Reads a job's stdout or stderr for as long as it writes, and keeps a bounded part.

The pipe is always emptied, so a job never stands still because of its own output; what is stored
and what is held in memory is bounded, whatever it writes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

CHUNK: Final = 1 << 16
TAIL: Final = 1 << 13


class LogDrain:
    """Drains one pipe into one file, on the event loop.

    Args:
        fd: read end of the pipe, non-blocking; owned by the drain from now on.
        path: the file; made here, must not exist.
        limit: bytes stored: the start, and where that is not all, a marker line and the end.
        hard_limit: bytes read until ``on_flood`` is called, once.
        greeting: the first byte is not the job's but the gate's: it is not stored, see
            ``greeted``.
        on_chunk: gets every chunk as it comes; the place for a reader of workflow commands.
    """

    def __init__(
        self,
        fd: int,
        path: Path,
        *,
        limit: int,
        hard_limit: int,
        on_flood: Callable[[], None],
        greeting: bool = False,
        on_chunk: Callable[[bytes], None] | None = None,
    ) -> None:
        self.bytes_read = 0
        self.truncated = False
        self.store_error: str | None = None
        self._fd = fd
        self._limit, self._hard_limit = limit, hard_limit
        self._held = TAIL if limit >= 4 * TAIL else 0
        """Bytes at the end that are stored only when it is known whether something is left out."""
        self._stored = 0
        self._on_flood: Callable[[], None] | None = on_flood
        self._on_chunk = on_chunk
        self._tail = b""
        self._loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[bool] = self._loop.create_future()
        """Whether the gate spoke, once that is known."""
        if not greeting:
            self.greeted.set_result(True)
        self._closed: asyncio.Future[None] = self._loop.create_future()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o600)
        self._loop.add_reader(fd, self._on_readable)

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done when every writer has closed the pipe and all of it is read."""
        return self._closed

    def tail(self, lines: int = 20) -> str:
        """The last lines, at most 8 KiB; what is not UTF-8 is replaced."""
        text = self._tail.decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """Give up before the end of the pipe. May be called at any time."""
        if not self._closed.done():
            self._end()

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        if not self.greeted.done():
            self.greeted.set_result(True)
            data = data[1:]
            if not data:
                return
        room = self._limit - self._held - self._stored
        if room > 0:
            self._stored += len(data[:room])
            self._store(data[:room])
        self.bytes_read += len(data)
        self._tail = data[-TAIL:] if len(data) >= TAIL else (self._tail + data)[-TAIL:]
        self.truncated = self.bytes_read > self._limit
        if self._on_chunk is not None:
            self._on_chunk(data)
        if self.bytes_read > self._hard_limit and self._on_flood is not None:
            on_flood, self._on_flood = self._on_flood, None
            on_flood()

    def _store(self, data: bytes) -> None:
        if self.store_error is not None:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as problem:  # the disk is full: go on reading, or the job would hang
            self.store_error = problem.strerror or str(problem)

    def _store_end(self) -> None:
        left = self.bytes_read - self._stored
        if left == 0:
            return
        if left > self._held:
            missing = left - self._held
            self._store(f"\n[ferryman: {missing} bytes are left out here]\n".encode())
        self._store(self._tail[-min(left, self._held) :] if self._held else b"")

    def _end(self) -> None:
        self._store_end()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        os.close(self._file)
        if not self.greeted.done():
            self.greeted.set_result(False)
        self._closed.set_result(None)
