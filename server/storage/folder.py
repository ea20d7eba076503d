"""Stored files in one folder: ``KIND/FIRST TWO DIGITS OF THE NAME/NAME``."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from server.domain.jobs import FileKind
from server.storage.base import NAME, FileStream, Storage
from server.storage.scratch import LocalStream, Scratch, ScratchFile
from shared.clock import Micros
from shared.files import durable
from shared.files.opened import opened

log: structlog.stdlib.BoundLogger = structlog.get_logger()
PREFIX_LEN: Final = 2
"""Digits of a name that choose its folder, so that no folder grows large."""
_PREFIX: Final = re.compile(r"[0-9a-f]{2}")
_PAGE: Final = 1_000


def stored_path(folder: Path, kind: FileKind, name: str) -> Path:
    """Where a stored file is below a data folder, or a backup."""
    return folder / kind / name[:PREFIX_LEN] / name


def stored_names(folder: Path, kind: FileKind) -> Iterator[list[str]]:
    """The names of all stored files of a kind, some at a time. Blocking."""
    after = ""
    while (folder / kind).is_dir() and (names := _list(folder / kind, after)):
        yield names
        after = names[-1]


class FolderStorage(Storage):
    """Below one folder.

    A scratch file is stored by an fsync and a rename; so it must be on the same file system.

    Args:
        folder: made if missing.
        scratch: on the same file system.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, scratch: Scratch, new_name: Callable[[], str]) -> None:
        super().__init__(new_name)
        self._folder, self._scratch = folder, scratch
        for kind in FileKind:
            (folder / kind).mkdir(mode=0o700, parents=True, exist_ok=True)

    async def _store(
        self, kind: FileKind, name: str, content: AsyncIterable[bytes] | bytes
    ) -> None:
        final = stored_path(self._folder, kind, name)
        if isinstance(content, ScratchFile):
            await asyncio.to_thread(_move, content.path, final)
            return
        if isinstance(content, bytes):
            await asyncio.to_thread(self._write, content, final)
            return
        async with self._scratch.file() as file:
            await file.write(content)
            await self._store(kind, name, file)

    def _write(self, content: bytes, final: Path) -> None:
        """Store all at once. Blocking."""
        with self._scratch.file(final.name) as file:
            file.reserve(len(content))
            _make_folder(final)
            durable.store(file.path, content, final)

    @asynccontextmanager
    async def open(self, kind: FileKind, name: str) -> AsyncIterator[FileStream]:
        path = stored_path(self._folder, kind, name)
        async with opened(partial(LocalStream, path)) as stream:
            yield stream

    @asynccontextmanager
    async def local_copy(self, kind: FileKind, name: str) -> AsyncIterator[Path]:
        yield stored_path(self._folder, kind, name)

    async def delete(self, files: Iterable[tuple[FileKind, str]]) -> None:
        paths = [stored_path(self._folder, kind, name) for kind, name in files]

        def unlink() -> None:
            for path in paths:
                durable.remove_quietly(path)

        await asyncio.to_thread(unlink)

    async def list(self, kind: FileKind, after: str = "") -> list[str]:
        return await asyncio.to_thread(_list, self._folder / kind, after)

    async def stored_before(
        self, kind: FileKind, names: Sequence[str], at: Micros
    ) -> Sequence[str]:
        def old(name: str) -> bool:
            try:
                return stored_path(self._folder, kind, name).stat().st_mtime_ns // 1_000 < at
            except OSError:
                return False

        return await asyncio.to_thread(lambda: [name for name in names if old(name)])


def _move(path: Path, final: Path) -> None:
    _make_folder(final)
    durable.replace(path, final)


def _make_folder(final: Path) -> None:
    """That of the file."""
    if not final.parent.is_dir():
        final.parent.mkdir(mode=0o700, exist_ok=True)
        durable.fsync_folder(final.parent.parent)


def _list(folder: Path, after: str) -> list[str]:
    """Names of whole folders, until there are enough."""
    with os.scandir(folder) as entries:
        prefixes = sorted(
            entry.name
            for entry in entries
            if _PREFIX.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )
    names: list[str] = []
    for prefix in prefixes:
        if prefix < after[:PREFIX_LEN]:
            continue
        try:
            inside = os.listdir(folder / prefix)  # noqa: PTH208 - names are enough
        except OSError as problem:  # unreadable: no reason to leave out all the others
            log.warning("storage.not_listed", folder=str(folder / prefix), error=str(problem))
            continue
        names += sorted(
            name
            for name in inside
            if name > after and NAME.fullmatch(name) and name.startswith(prefix)
        )
        if len(names) >= _PAGE:
            break
    return names
