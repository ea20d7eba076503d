"""Scratch files in one folder, of whose disk some stays free at every moment.

Who writes a new file asks before each piece. What is granted and not yet
written counts as used: two uploads that fit one by one do not fill the disk together.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final

from shared.files import durable
from shared.files.opened import opened

_CHUNK: Final = 1 << 20
_PATIENCE_S: Final = 0.5
"""With a disk that is asked how much is free."""
_MOST_AHEAD: Final = 4 << 20
"""Bytes that are granted in advance; at most as many as were written, so that a small or stalled
file holds next to nothing."""


class NoSpace(OSError):
    """What is to be written would not leave the space that must stay free."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))


class LocalStream:
    """The bytes of a local file; made in a thread.

    Its first bytes are read at once: most files are no longer, and a second hop to a thread costs
    more than that.

    Attributes:
        size: bytes of the whole file.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._at = path.open("rb", buffering=0), 0
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self._first = self._read()
        except BaseException:
            self.close()
            raise
        if self._at >= self.size:
            self.close()

    def close(self) -> None:
        self._file.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunk, self._first = self._first, b""
        while chunk:
            yield chunk
            if self._at >= self.size:
                return
            chunk = await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        data = os.pread(self._file.fileno(), _CHUNK, self._at)
        self._at += len(data)
        return data


class ScratchFile:
    """A local file that its owner writes; iterated over, it yields its content. For ``async with``;
    in a thread, for ``with``. Whatever is at its path at the end is removed.

    Attributes:
        path: nothing is there at first.
        made: whether there may be something now. Whoever knows that there is nothing says so.
    """

    def __init__(self, path: Path, scratch: Scratch) -> None:
        self.path, self.made, self._scratch = path, True, scratch
        self._held = self._taken = self._last = 0
        """Bytes: granted and not known to be written, ever asked for, asked for last."""

    def reserve(self, count: int) -> None:
        """Before writing ``count`` more bytes, and after having written those before; one thread at
        a time. Blocking. Raises NoSpace.
        """
        scratch = self._scratch
        with scratch._lock:
            self._count_last()
        if count > self._held:
            scratch.measure()
        with scratch._lock:
            if (missing := count - self._held) > 0:
                available = scratch.available()
                if available < missing:
                    raise NoSpace
                ahead = min(available, missing + min(self._taken, _MOST_AHEAD))
                scratch._granted += ahead
                self._held += ahead
            self._last = count
            self._taken += count

    def release(self) -> None:
        """Give back what was not written."""
        with self._scratch._lock:
            self._count_last()
            self._scratch._granted -= self._held
            self._held = 0

    def _count_last(self) -> None:
        """The last bytes were written, if not, the disk has them when it is asked again."""
        self._scratch._written += self._last
        self._held -= self._last
        self._last = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with opened(partial(LocalStream, self.path)) as stream:
            async for chunk in stream:
                yield chunk

    def __enter__(self) -> ScratchFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        durable.remove_quietly(self.path)

    async def __aenter__(self) -> ScratchFile:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.made:
            await asyncio.to_thread(self.__exit__)
        else:
            self.release()


class Scratch:
    """Scratch files, and how much of the disk may be used for them.

    The disk is asked in threads and never under the lock: it may not answer. What was granted
    before the disk was asked, and not known to be written then, counts as used.

    Args:
        folder: made if missing.
        new_name: as :class:`server.storage.folder.Storage` has it.
        min_free: bytes of disk that stay free.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, new_name: Callable[[], str], min_free: int = 0) -> None:
        self._folder, self._new_name, self._min_free = folder, new_name, min_free
        self._lock = threading.RLock()
        self._granted = self._written = 0
        """Bytes, ever."""
        self._free = self._written_before = 0
        """Bytes: free when the disk was asked last, and written before that."""
        self._measuring: asyncio.Future[None] | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.measure()

    def file(self, name: str | None = None) -> ScratchFile:
        return ScratchFile(self._folder / (name or self._new_name()), self)

    async def too_full_for(self, count: int) -> int | None:
        """How many bytes are free, if ``count`` more may not be written. None: they may, or the
        disk does not say so soon.
        """
        if not self.has_room(count):
            if self._measuring is None or self._measuring.done():
                self._measuring = asyncio.ensure_future(asyncio.to_thread(self._measure))
            await asyncio.wait([self._measuring], timeout=_PATIENCE_S)
            if not self._measuring.done():
                return None  # whoever writes asks the disk, too
        return None if self.has_room(count) else self._free

    def has_room(self, count: int) -> bool:
        """Whether that many bytes may be written, by what the disk said last."""
        return count <= self.available()

    def available(self) -> int:
        """Bytes that may be granted, by what the disk said last; may be negative."""
        with self._lock:
            return self._free - self._min_free - (self._granted - self._written_before)

    def _measure(self) -> None:
        with contextlib.suppress(OSError):  # the last number stays
            self.measure()

    def measure(self) -> None:
        """Ask the disk. Blocking. Raises OSError."""
        with self._lock:
            written = self._written
        free = self.free_bytes()
        with self._lock:
            self._free, self._written_before = free, written

    def free_bytes(self) -> int:
        """Bytes of the disk that are free. Blocking."""
        usage = os.statvfs(self._folder)
        return usage.f_bavail * usage.f_frsize

    def total_bytes(self) -> int:
        """Bytes of the disk. Blocking."""
        usage = os.statvfs(self._folder)
        return usage.f_blocks * usage.f_frsize

    def most(self) -> int:
        """Bytes that could be written if nothing else were on the disk. Blocking."""
        return self.total_bytes() - self._min_free

    def check_writable(self) -> None:
        """Raises OSError if a file cannot be made and written. Blocking."""
        self.measure()  # it is asked regularly: so what is free is known without waiting
        with self.file() as file:
            file.path.write_bytes(b"ferryman")

    def clear(self) -> int:
        """At start: remove the files of earlier runs of the server; how many. Blocking."""
        left = list(self._folder.iterdir())
        for path in left:
            durable.remove_quietly(path)
        return len(left)
