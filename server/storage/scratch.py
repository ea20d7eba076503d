"""Scratch files in one folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from server.ports import RunningServers
from server.storage.base import new_name, owner_of
from server.storage.space import Reservation, Space
from server.storage.stream import LocalStream
from shared.files import durable
from shared.files.opened import opened
from shared.live import Value


@dataclass(frozen=True, slots=True)
class FolderScratchFile:
    """``ports.ScratchFile``: a path, and the disk space that was reserved for it."""

    path: Path
    reservation: Reservation

    def reserve(self, count: int) -> None:
        self.reservation.take(count)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with opened(partial(LocalStream, self.path)) as stream:
            async for chunk in stream:
                yield chunk

    async def write(self, content: AsyncIterable[bytes]) -> None:
        """Write the content to the new file.

        Raises:
            OSError
        """
        gone = partial(durable.remove_quietly, self.path)
        async with opened(lambda: self.path.open("xb", buffering=0), gone) as file:
            async for chunk in content:
                self.reserve(len(chunk))
                await asyncio.to_thread(durable.write_all, file.fileno(), chunk)


class FolderScratch:
    """``ports.Scratch`` in one folder.

    Args:
        folder: made if missing.
        owner, token: see :func:`server.storage.base.new_name`.
        min_free: bytes of disk that stay free.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(
        self, folder: Path, owner: str, token: Callable[[], str], min_free: Value[int] = 0
    ) -> None:
        self._folder, self._owner, self._token = folder, owner, token
        self._space = Space(self.free_bytes, min_free)
        self.available_bytes = self._space.available
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def file(self, name: str | None = None) -> Iterator[FolderScratchFile]:
        path = self._folder / (name or new_name(self._owner, self._token))
        with self._space.reserve() as reservation:
            try:
                yield FolderScratchFile(path, reservation)
            finally:
                durable.remove_quietly(path)

    def free_bytes(self) -> int:
        usage = os.statvfs(self._folder)
        return usage.f_bavail * usage.f_frsize

    def total_bytes(self) -> int:
        usage = os.statvfs(self._folder)
        return usage.f_blocks * usage.f_frsize

    def check_writable(self) -> None:
        with self.file() as file:
            file.path.write_bytes(b"ferryman")

    async def clear(self, running_servers: RunningServers) -> int:
        names = await asyncio.to_thread(os.listdir, self._folder)
        running = await running_servers()
        left = [name for name in names if owner_of(name) not in running]
        for name in left:
            durable.remove_quietly(self._folder / name)
        return len(left)
