"""Scratch files in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from server.storage.space import Reservation, Space
from server.storage.stream import LocalStream
from shared.files import durable
from shared.files.opened import opened, to_end

_PATIENCE_S: Final = 0.5
"""With a disk that is asked how much is free."""


@dataclass(slots=True)
class FolderScratchFile:
    """``ports.ScratchFile``: a path, and the disk space that was reserved for it."""

    path: Path
    reservation: Reservation
    made: bool = True

    def reserve(self, count: int) -> None:
        self.reservation.take(count)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with opened(partial(LocalStream, self.path)) as stream:
            async for chunk in stream:
                yield chunk

    async def write(self, content: AsyncIterable[bytes]) -> None:
        """Write the content to the new file. Raises OSError."""
        gone = partial(durable.remove_quietly, self.path)
        async with opened(lambda: self.path.open("xb", buffering=0), gone) as file:
            async for chunk in content:
                await to_end(partial(self._append, file.fileno(), chunk))

    def _append(self, fd: int, chunk: bytes) -> None:
        self.reserve(len(chunk))
        durable.write_all(fd, chunk)


class NewScratchFile:
    """``ports.NewScratchFile``."""

    def __init__(self, path: Path, space: Space) -> None:
        self._file = FolderScratchFile(path, Reservation(space))

    def __enter__(self) -> FolderScratchFile:
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.reservation.end()
        durable.remove_quietly(self._file.path)

    async def __aenter__(self) -> FolderScratchFile:
        return self._file

    async def __aexit__(self, *_: object) -> None:
        if self._file.made:
            await asyncio.to_thread(self.__exit__)
        else:
            self._file.reservation.end()


class FolderScratch:
    """``ports.Scratch`` in one folder.

    Args:
        folder: made if missing.
        new_name: see :class:`server.storage.base.BaseStorage`.
        min_free: bytes of disk that stay free.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, new_name: Callable[[], str], min_free: int = 0) -> None:
        self._folder, self._new_name = folder, new_name
        self._min_free = min_free
        self._space = Space(lambda: self.free_bytes(), min_free)
        self.available_bytes = self._space.available
        self._measuring: asyncio.Future[None] | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._space.measure()

    def file(self, name: str | None = None) -> NewScratchFile:
        path = self._folder / (name or self._new_name())
        return NewScratchFile(path, self._space)

    async def too_full_for(self, count: int) -> int | None:
        if count > self._space.available():
            if self._measuring is None or self._measuring.done():
                self._measuring = asyncio.ensure_future(asyncio.to_thread(self._measure))
            await asyncio.wait([self._measuring], timeout=_PATIENCE_S)
            if not self._measuring.done():
                return None  # whoever writes asks the disk, too
        return self._space.free_bytes if count > self._space.available() else None

    def _measure(self) -> None:
        with contextlib.suppress(OSError):  # the last number stays
            self._space.measure()

    def measure(self) -> int:
        self._space.measure()
        return self._space.available()

    def free_bytes(self) -> int:
        usage = os.statvfs(self._folder)
        return usage.f_bavail * usage.f_frsize

    def total_bytes(self) -> int:
        usage = os.statvfs(self._folder)
        return usage.f_blocks * usage.f_frsize

    def most(self) -> int:
        return self.total_bytes() - self._min_free

    def check_writable(self) -> None:
        self._space.measure()  # it is asked regularly: so what is free is known without waiting
        with self.file() as file:
            file.path.write_bytes(b"ferryman")

    def clear(self) -> int:
        left = list(self._folder.iterdir())
        for path in left:
            durable.remove_quietly(path)
        return len(left)
