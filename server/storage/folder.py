"""Bundles and results: one sealed file each, named by chance, referred to by a row.

Bytes before row, row before deletion: a crash leaves an orphan file, never a job without its bytes.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from server.storage.space import Space
from shared.files import durable

log: structlog.stdlib.BoundLogger = structlog.get_logger()
KINDS: Final = ("bundles", "results")
_NAME: Final = re.compile(r"[0-9a-f]{32}")
_SHELF: Final = 2  # characters of a name that choose its folder: keeps folders small


def stored_path(folder: Path, kind: str, name: str) -> Path:
    """Where a sealed file lies below a data folder, or a backup."""
    return folder / kind / name[:_SHELF] / name


class FolderFiles:
    """``ports.Files`` below one folder.

    Args:
        folder: made if missing.
        token: makes a new name, 32 hex digits.
        min_free: bytes of disk that stay free.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, token: Callable[[], str], min_free: int = 0) -> None:
        self._folder, self._token = folder, token
        self._space = Space(self.free_bytes, min_free)
        self.room, self.reserve = self._space.room, self._space.reserve
        self._staging = folder / "staging"
        self._fresh: set[str] = set()
        """Sealed, but no row refers to them yet: no orphans."""
        for name in ("staging", *KINDS):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        path = self._staging / self._token()
        try:
            yield path
        finally:
            durable.remove_quietly(path)

    @contextmanager
    def sealing(self, kind: str) -> Iterator[Sealing]:
        sealing = Sealing(self, kind)
        try:
            yield sealing
        except Exception:
            sealing.close()
            raise
        # Not in a finally: whoever is cancelled may have a write under way that refers to the file.
        # It stays fresh, and is an orphan only for the next start.
        sealing.close()

    def path(self, kind: str, name: str) -> Path:
        return stored_path(self._folder, kind, name)

    async def remove(self, files: Iterable[tuple[str, str]]) -> None:
        paths = [self.path(kind, name) for kind, name in files]

        def unlink() -> None:
            for path in paths:
                durable.remove_quietly(path)

        await asyncio.to_thread(unlink)

    async def shelves(self) -> list[tuple[str, str]]:
        def look() -> list[tuple[str, str]]:
            found = []
            for kind in KINDS:
                with os.scandir(self._folder / kind) as entries:
                    found += [
                        (kind, entry.name)
                        for entry in entries
                        if len(entry.name) == _SHELF and entry.is_dir(follow_symlinks=False)
                    ]
            return found

        return await asyncio.to_thread(look)

    async def orphans(
        self, kind: str, shelf: str, in_use: Callable[[Sequence[str]], Awaitable[set[str]]]
    ) -> int:
        try:
            listed = await asyncio.to_thread(os.listdir, self._folder / kind / shelf)
        except OSError as problem:  # unreadable: no reason to leave all the others
            log.warning("orphans.not_listed", kind=kind, shelf=shelf, error=str(problem))
            return 0
        names = [name for name in listed if _NAME.fullmatch(name)]
        # Between listing and asking: a name that is fresh no more has its row by now.
        fresh = set(self._fresh)
        orphans = set(names) - fresh - await in_use(names)
        await self.remove((kind, name) for name in orphans)
        return len(orphans)

    async def clear_staging(self) -> int:
        names = await asyncio.to_thread(os.listdir, self._staging)
        for name in names:
            durable.remove_quietly(self._staging / name)
        return len(names)

    def free_bytes(self) -> int:
        """Space that is left for us."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def check_writable(self) -> None:
        """Raises OSError when a file cannot be made, written and made durable."""
        with self.staging() as path:
            path.write_bytes(b"ferryman")


class Sealing:
    """Files that are being sealed; those not kept are removed."""

    def __init__(self, files: FolderFiles, kind: str) -> None:
        self._files, self._kind, self._names = files, kind, list[str]()

    async def seal(self, staged: Path) -> str:
        name = self._files._token()
        self._files._fresh.add(name)
        self._names.append(name)
        final = self._files.path(self._kind, name)

        def move() -> None:
            if not final.parent.is_dir():
                final.parent.mkdir(mode=0o700, exist_ok=True)
                durable.fsync_folder(final.parent.parent)
            durable.replace(staged, final)

        await asyncio.to_thread(move)
        return name

    def keep(self) -> None:
        self._files._fresh.difference_update(self._names)
        self._names.clear()

    def close(self) -> None:
        for name in self._names:
            durable.remove_quietly(self._files.path(self._kind, name))
        self.keep()
