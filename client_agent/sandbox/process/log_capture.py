"""Log capture: reads a job's stdout or stderr to its end, and stores a part of limited size.

The pipe is always read, so a job does not block because of its own output. What is stored and what
is kept in memory is limited. If a job writes single bytes, they are read a little later in larger
pieces, so that reading takes little CPU time. Files are written in a thread, because a slow disk
must delay only the jobs that write to it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import termios
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import OutputListener
from shared.files.durable import write_all

READ_SIZE: Final = 1 << 16
TAIL_SIZE: Final = 1 << 13
SMALL_READ: Final = 1 << 12
"""A read of fewer bytes is a small read."""
MAX_SMALL_READS: Final = 32
"""After so many small reads, reading pauses for PAUSE_S."""
PAUSE_S: Final = 0.02
MAX_LINES: Final = 200
"""After so many lines that the listener had to look at, reading pauses, too."""
LINE_PAUSE_S: Final = 30e-6
"""Pause for each such line, several times what it took."""
FEWER_BYTES: Final = 1 << 13
"""Read at once after a read with many such lines, so that one job does not hold up the others."""
MAX_UNWRITTEN: Final = 1 << 18
"""While more bytes wait for the disk, the pipe is not read."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How much of stdout and stderr is stored and read, in bytes each."""

    limit: int
    """Bytes stored. If there are more, the start, a marker line and the end are stored."""
    hard_limit: int
    on_flood: Callable[[str], None]
    """Called once with "stdout" or "stderr" when more than ``hard_limit`` bytes of it are read."""
    threads: Executor
    """Threads in which the files are written."""
    listener: OutputListener | None = None


class LogCapture:
    """Copies one pipe to one file, on the event loop.

    Args:
        fd: read end of the pipe, non-blocking; owned by the capture from now on.
        path: the file; made here, must not exist.
        stream: "stdout" or "stderr".
    """

    def __init__(self, fd: int, path: Path, stream: str, settings: LogSettings) -> None:
        self.bytes_read = 0
        self.truncated = False
        self.store_error: str | None = None
        self._fd, self._stream, self._settings = fd, stream, settings
        self._limit = limit = settings.limit
        self._tail_reserve = TAIL_SIZE if limit >= 4 * TAIL_SIZE else 0
        """So many bytes are stored only at the end, when it is known what is left out."""
        self._stored = 0
        self._flooded = False
        self._tail = b""
        self._unwritten: list[bytes] = []
        self._writing: asyncio.Future[None] | None = None
        self._small_reads = self._lines = 0
        self._read_size = READ_SIZE
        self._reading = True
        self._pause: asyncio.TimerHandle | None = None
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done when all writers have closed the pipe, it is read, and the file is written."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o600)
        self._loop.add_reader(fd, self._on_readable)

    def tail(self, lines: int = 20) -> str:
        """The last lines, at most 8 KiB; what is not UTF-8 is replaced."""
        text = self._tail.decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    @property
    def paused(self) -> bool:
        """Whether the pipe is not read at the moment, although it has not ended."""
        return not self._ended and not self._reading

    def stop(self) -> None:
        """Stop reading before the end of the pipe. May be called at any time. What was read is
        still written."""
        if not self._ended:
            self._end()

    def finish(self) -> None:
        """Read what is in the pipe, and end, although somebody may still have it open: nobody
        writes to it any more."""
        while not self._ended and _unread(self._fd):
            self._on_readable()
        self.stop()

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, self._read_size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        space = self._limit - self._tail_reserve - self._stored
        if space > 0:
            self._stored += len(data[:space])
            self._store(data[:space])
        self.bytes_read += len(data)
        self._tail = (
            data[-TAIL_SIZE:] if len(data) >= TAIL_SIZE else (self._tail + data)[-TAIL_SIZE:]
        )
        self.truncated = self.bytes_read > self._limit
        listener = self._settings.listener
        lines = 0 if listener is None else listener.on_output(self._stream, data)
        self._limit_reading(len(data), lines)
        if self.bytes_read > self._settings.hard_limit and not self._flooded:
            self._flooded = True
            self._settings.on_flood(self._stream)

    def _limit_reading(self, size: int, lines: int) -> None:
        """Stop reading for a while after many small reads, after many lines for the listener, or
        while the disk is behind."""
        self._small_reads += size < SMALL_READ
        self._lines += lines
        self._read_size = READ_SIZE if lines < MAX_LINES else FEWER_BYTES
        if self._small_reads >= MAX_SMALL_READS or self._lines >= MAX_LINES:
            pause_s = max(PAUSE_S, self._lines * LINE_PAUSE_S)
            self._small_reads = self._lines = 0
            self._pause = self._loop.call_later(pause_s, self._end_pause)
        if self._pause is not None or self._backlogged:
            self._loop.remove_reader(self._fd)
            self._reading = False

    def _end_pause(self) -> None:
        self._pause = None
        self._resume()

    def _resume(self) -> None:
        if not self._ended and not self._reading and self._pause is None and not self._backlogged:
            self._reading = True
            if self._settings.listener is not None:
                self._settings.listener.on_output(self._stream, b"")
            self._loop.add_reader(self._fd, self._on_readable)

    @property
    def _backlogged(self) -> bool:
        return sum(map(len, self._unwritten)) > MAX_UNWRITTEN

    def _store(self, data: bytes) -> None:
        if self.store_error is None:
            self._unwritten.append(data)
            if self._writing is None:
                self._write()

    def _write(self) -> None:
        data = b"".join(self._unwritten)
        self._unwritten.clear()
        threads = self._settings.threads
        self._writing = self._loop.run_in_executor(threads, write_all, self._file, data)
        self._writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        problem = None if writing.cancelled() else writing.exception()
        if problem is not None:  # go on reading, or the job would block
            self.store_error = getattr(problem, "strerror", None) or str(problem)
            self._unwritten.clear()
        elif self._settings.listener is not None:
            self._settings.listener.on_stored(self._stream)
        if self._unwritten:
            self._write()
        if self._ended:
            self._close()
        else:
            self._resume()

    def _store_tail(self) -> None:
        left = self.bytes_read - self._stored
        if left == 0:
            return
        if left > self._tail_reserve:
            missing = left - self._tail_reserve
            self._store(f"\n[ferryman: {missing} bytes are left out here]\n".encode())
        self._store(self._tail[-min(left, self._tail_reserve) :] if self._tail_reserve else b"")

    def _end(self) -> None:
        self._ended = True
        self._store_tail()
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._close()

    def _close(self) -> None:
        """Close the file, unless something is still to be written."""
        if self._writing is None:
            os.close(self._file)
            self.closed.set_result(None)


def _unread(fd: int) -> bool:
    """Whether there are bytes in a pipe."""
    return any(fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))
