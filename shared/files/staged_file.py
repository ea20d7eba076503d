"""A new file that is written from its begin to its end, in few and large writes. Blocking.

A small file is one write, when it is flushed. A large one bypasses the page cache from some point
on: nothing is left to wait for at its end, and gigabytes do not push out what others read. A block
of it is written in a thread of its own, while the next one fills.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from shared.files.durable import WRITEBACK_BYTES, remove_quietly, start_writeback

ReserveSpace = Callable[[int], None]
"""Called before so many more bytes are written; raises OSError if there is no space for them."""
BLOCK: Final = 1 << 20
"""Bytes of a write that bypasses the page cache; its offset is a multiple of this."""
DIRECT_FROM: Final = 16 << 20
"""So much of each file stays in the page cache: most files are read again soon."""
_KEPT: Final = 32 << 10
"""Bytes that are kept in memory, of a file that is not large."""
_NOT_HERE: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
"""The file system cannot bypass the page cache."""


class StagedFile:
    """One file.

    Args:
        path: must not exist.
        reserve: called before each write that makes the file longer, and after the one before.

    Raises:
        OSError: here and from every method but :meth:`close`.
    """

    def __init__(self, path: Path, reserve: ReserveSpace | None = None) -> None:
        self._path, self._reserve = path, reserve
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        # Direct writes need whole pages. Those that are never touched take no memory.
        self._block = mmap.mmap(-1, BLOCK)
        self._filled = 0
        """Bytes in the block. They follow those that are written."""
        self._written = self._writeback_from = 0
        self._may_be_direct, self._direct = hasattr(os, "O_DIRECT"), _Direct()

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._written + self._filled

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append."""
        if self._may_be_direct and not self._direct.opened and self.size > DIRECT_FROM:
            self._may_be_direct = self._direct.open(self._path)
        if not self._direct.opened and self._filled + len(data) > _KEPT:
            self.flush()
            self._write_now(data)
            return
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                end = BLOCK - self._written % BLOCK
                count = min(len(view) - done, end - self._filled)
                self._block[self._filled : self._filled + count] = view[done : done + count]
                self._filled += count
                done += count
                if self._filled == BLOCK and self._direct.opened:
                    self._write_block()
                elif self._filled == end:
                    self.flush()

    def patch(self, at: int, data: bytes | bytearray) -> None:
        """Overwrite bytes that were appended before."""
        if at >= self._written:
            start = at - self._written
            self._block[start : start + len(data)] = data
            return
        if at + len(data) > self._written:
            self.flush()
        self._settle()
        os.pwrite(self._fd, data, at)

    def flush(self) -> None:
        """Write what is in memory, so that it can be read."""
        self._settle()
        count, self._filled = self._filled, 0
        with memoryview(self._block) as block, block[:count] as data:
            self._write_now(data)

    def sync(self) -> None:
        """Put all of it on the disk."""
        self.flush()
        os.fsync(self._fd)

    def close(self) -> None:
        """May be repeated. What was not flushed is lost."""
        if self._fd >= 0:
            self._direct.close()
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
            self._block.close()

    def _write_block(self) -> None:
        """Begin to write the block, which is full."""
        self._settle()
        if not self._direct.opened:
            self.flush()
            return
        if self._reserve is not None:
            self._reserve(BLOCK)
        self._block = self._direct.start(self._block, self._written)
        self._written += BLOCK
        self._writeback_from = self._written
        self._filled = 0

    def _settle(self) -> None:
        """Wait for the block before. If it could not bypass the page cache, no other one does."""
        missing = self._direct.finish()
        if missing is not None:
            self._may_be_direct = False
            with missing:
                _write_at(self._fd, missing, self._written - len(missing))

    def _write_now(self, data: bytes | bytearray | memoryview) -> None:
        if self._reserve is not None and len(data):
            self._reserve(len(data))
        _write_at(self._fd, data, self._written)
        self._written += len(data)
        if self._written >= self._writeback_from + WRITEBACK_BYTES:
            start_writeback(self._fd, self._writeback_from, self._written - self._writeback_from)
            self._writeback_from = self._written


class _Direct:
    """Writes blocks past the page cache, one at a time."""

    def __init__(self) -> None:
        self._fd = -1
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[int] | None = None
        self._spare: mmap.mmap | None = None

    @property
    def opened(self) -> bool:
        return self._fd >= 0

    def open(self, path: Path) -> bool:
        """Whether the file system can."""
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as problem:
            if problem.errno not in _NOT_HERE:
                raise
            return False
        self._thread, self._spare = ThreadPoolExecutor(1, "blocks"), mmap.mmap(-1, BLOCK)
        return True

    def start(self, block: mmap.mmap, at: int) -> mmap.mmap:
        """Begin to write a block; another one, to fill meanwhile."""
        assert self._thread is not None
        assert self._spare is not None
        other, self._spare = self._spare, block
        self._running = self._thread.submit(os.pwrite, self._fd, block, at)
        return other

    def finish(self) -> memoryview | None:
        """Wait until the block is written; the rest of it, if it has to go through the page cache:
        then this is closed.
        """
        if self._running is None:
            return None
        running, self._running = self._running, None
        try:
            done = running.result()
        except OSError as problem:
            if problem.errno not in _NOT_HERE:
                raise
            done = 0
        if done == BLOCK:
            return None
        assert self._spare is not None
        rest = memoryview(self._spare)[done:]
        self.close()
        return rest

    def close(self) -> None:
        """Once nothing is written any more."""
        if self._thread is not None:
            self._thread.shutdown()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = -1


def _write_at(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write all of it, however little the kernel takes at once."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)


class KeptFile:
    """As a :class:`StagedFile`, which it becomes with the first byte too many. Until then no method
    blocks, and nothing is on the disk.

    Args:
        path: must not exist.
        most: bytes that are kept in memory; 0: none, the file is made at once.

    Raises:
        OSError: here and from every method but :meth:`remove`.
    """

    def __init__(self, path: Path, reserve: ReserveSpace | None = None, most: int = 0) -> None:
        self._path, self._reserve, self._most = path, reserve, most
        self._kept = bytearray()
        self._staged = None if most else StagedFile(path, reserve)

    @property
    def size(self) -> int:
        """Bytes so far."""
        return len(self._kept) if self._staged is None else self._staged.size

    @property
    def content(self) -> bytes | None:
        """All of it; None: it is on the disk."""
        return bytes(self._kept) if self._staged is None else None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append."""
        if self._staged is None:
            if len(self._kept) + len(data) <= self._most:
                self._kept += data
                return
            self._staged = StagedFile(self._path, self._reserve)
            self._staged.write(self._kept)
            self._kept.clear()
        self._staged.write(data)

    def patch(self, at: int, data: bytes | bytearray) -> None:
        """Overwrite bytes that were appended before."""
        if self._staged is None:
            self._kept[at : at + len(data)] = data
        else:
            self._staged.patch(at, data)

    def finish(self) -> None:
        """Put all of it on the disk, unless it is in memory, and close it."""
        if self._staged is not None:
            self._staged.sync()
            self._staged.close()

    def remove(self) -> None:
        """Close it, and remove what is on the disk. May be repeated."""
        if self._staged is not None:
            self._staged.close()
            remove_quietly(self._path)
