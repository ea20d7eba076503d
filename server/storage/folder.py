"""Stored files in one folder: ``KIND/FIRST TWO DIGITS OF THE NAME/NAME``."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from server.domain.jobs import FileKind
from server.storage.scratch import LocalStream, Scratch, ScratchFile
from shared.clock import Micros
from shared.files import durable
from shared.files.opened import opened

log: structlog.stdlib.BoundLogger = structlog.get_logger()
NAME: Final = re.compile(r"[0-9a-f]{32}")
InUse = Callable[[Sequence[str]], Awaitable[set[str]]]
"""Those of the files' names that a row refers to."""
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


class Storage:
    """Stored files, found by kind and name.

    Bytes before row, row before deletion: a crash at any point leaves a file that no row refers
    to, never a row whose file is gone. What a crash leaves is an orphan, and is deleted later.

    Args:
        folder: made if missing.
        scratch: on the same file system: a scratch file is stored by an fsync and a rename.
        new_name: gives 32 hex digits, others each time.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, scratch: Scratch, new_name: Callable[[], str]) -> None:
        self._folder, self._scratch, self.new_name = folder, scratch, new_name
        self._pending = set[str]()
        for kind in FileKind:
            (folder / kind).mkdir(mode=0o700, parents=True, exist_ok=True)

    def _store(self, kind: FileKind, name: str, content: ScratchFile | bytes) -> None:
        """A new file: whole, durable and visible when this returns, or not at all. Blocking."""
        final = self.path(kind, name)
        _make_folder(final)
        if isinstance(content, ScratchFile):
            durable.replace(content.path, final)
            return
        with self._scratch.file(name) as file:
            file.reserve(len(content))
            durable.store(file.path, content, final)

    def open(self, kind: FileKind, name: str) -> AbstractAsyncContextManager[LocalStream]:
        """Read a file, to its end even if it is deleted meanwhile. Raises OSError."""
        return opened(partial(LocalStream, self.path(kind, name)))

    def path(self, kind: FileKind, name: str) -> Path:
        """Where to read the file, for what needs a path; not to be written."""
        return stored_path(self._folder, kind, name)

    async def delete(self, files: Iterable[tuple[FileKind, str]]) -> None:
        """Delete files; one that is not there is no error. What cannot be deleted now is left to
        the orphan sweep.
        """
        paths = [self.path(kind, name) for kind, name in files]

        def unlink() -> None:
            for path in paths:
                durable.remove_quietly(path)

        await asyncio.to_thread(unlink)

    async def list(self, kind: FileKind, after: str = "") -> list[str]:
        """Some of the names behind ``after``, in their order; empty: there are no more. Files that
        somebody else put there are not listed.
        """
        return await asyncio.to_thread(_list, self._folder / kind, after)

    async def stored_before(
        self, kind: FileKind, names: Sequence[str], at: Micros
    ) -> Sequence[str]:
        """Those of the files that were stored before that time."""

        def old(name: str) -> bool:
            try:
                return self.path(kind, name).stat().st_mtime_ns // 1_000 < at
            except OSError:
                return False

        return await asyncio.to_thread(lambda: [name for name in names if old(name)])

    @asynccontextmanager
    async def pending(self, kind: FileKind) -> AsyncIterator[PendingFiles]:
        """Store files for a row that is about to be written.

        Files that are not committed at the end are deleted. After a cancellation they stay,
        because the row may still be written: the orphan sweep of the next run decides.
        """
        files = PendingFiles(self, kind)
        try:
            yield files
        except Exception:
            await files.discard()
            raise
        await files.discard()  # not in a finally: see above

    async def orphans(self, names: Sequence[str], in_use: InUse) -> Sequence[str]:
        """Those of the listed files that no row refers to, nor will.

        A file that this run has stored is none while it is pending.
        """
        candidates = [name for name in names if name not in self._pending]
        # Asked last: a candidate that was pending when it was listed has its row by now, or none.
        used = await in_use(candidates)
        return [name for name in candidates if name not in used]

    async def delete_orphans(self, kind: FileKind, names: Sequence[str], in_use: InUse) -> int:
        """Delete the orphans among the listed files; how many."""
        orphans = await self.orphans(names, in_use)
        await self.delete((kind, name) for name in orphans)
        return len(orphans)


class PendingFiles:
    """Files that are stored, and that no row refers to yet."""

    def __init__(self, storage: Storage, kind: FileKind) -> None:
        self._storage, self._kind, self._names = storage, kind, list[str]()

    async def put(self, content: ScratchFile | bytes) -> str:
        """Store the content; its name. Once this returns, it is whole, durable and never changed.
        Raises OSError.

        A scratch file is taken as it is, without a copy: it is gone then.
        """
        storage = self._storage
        name = storage.new_name()
        # First: from the moment it can be listed, it must be known to be no orphan.
        storage._pending.add(name)
        self._names.append(name)
        await asyncio.to_thread(storage._store, self._kind, name, content)
        return name

    def commit(self) -> None:
        """A row refers to the files now."""
        self._storage._pending.difference_update(self._names)
        self._names.clear()

    async def discard(self) -> None:
        """Delete what is not committed."""
        if self._names:
            await self._storage.delete([(self._kind, name) for name in self._names])
            self.commit()


def _make_folder(final: Path) -> None:
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
