"""What every storage promises, and what is the same in each: names, files that no row refers to
yet, orphans.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from server.domain.jobs import FileKind
from shared.clock import Micros

NAME: Final = re.compile(r"[0-9a-f]{32}")
InUse = Callable[[Sequence[str]], Awaitable[set[str]]]
"""Those of the files' names that a row refers to."""


class FileStream(Protocol):
    """Bytes of a stored file; they can be iterated over once."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Storage(ABC):
    """Stored files, found by kind and name.

    Bytes before row, row before deletion: a crash at any point leaves a file that no row refers
    to, never a row whose file is gone. What a crash leaves is an orphan, and is deleted later.

    Args:
        new_name: gives 32 hex digits, others each time.
    """

    def __init__(self, new_name: Callable[[], str]) -> None:
        self.new_name = new_name
        self._pending = set[str]()

    @abstractmethod
    async def _store(
        self, kind: FileKind, name: str, content: AsyncIterable[bytes] | bytes
    ) -> None:
        """Store a new file: whole, durable and visible when this returns, or not at all."""

    @abstractmethod
    def open(self, kind: FileKind, name: str) -> AbstractAsyncContextManager[FileStream]:
        """Read a file. Raises OSError.

        A file that is deleted meanwhile can be read to its end.
        """

    @abstractmethod
    def local_copy(self, kind: FileKind, name: str) -> AbstractAsyncContextManager[Path]:
        """A path to read the file at, for what needs one; not to be written. One that is missing
        is missed here, or when the path is opened.
        """

    @abstractmethod
    async def delete(self, files: Iterable[tuple[FileKind, str]]) -> None:
        """Delete files; one that is not there is no error.

        A file that cannot be deleted now is left to the orphan sweep.
        """

    @abstractmethod
    async def list(self, kind: FileKind, after: str = "") -> list[str]:
        """Some of the names behind ``after``, in their order; empty: there are no more.

        Files that somebody else put there are not listed.
        """

    @abstractmethod
    async def stored_before(
        self, kind: FileKind, names: Sequence[str], at: Micros
    ) -> Sequence[str]:
        """Those of the files that were stored before that time."""

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

    async def orphans(self, kind: FileKind, names: Sequence[str], in_use: InUse) -> Sequence[str]:
        """Those of the listed files that no row refers to, nor will.

        A file that this run has stored is none while it is pending.
        """
        candidates = [name for name in names if name not in self._pending]
        # Asked last: a candidate that was pending when it was listed has its row by now, or none.
        used = await in_use(candidates)
        return [name for name in candidates if name not in used]

    async def delete_orphans(self, kind: FileKind, names: Sequence[str], in_use: InUse) -> int:
        """Delete the orphans among the listed files; how many."""
        orphans = await self.orphans(kind, names, in_use)
        await self.delete((kind, name) for name in orphans)
        return len(orphans)


class PendingFiles:
    """Files that are stored, and that no row refers to yet."""

    def __init__(self, storage: Storage, kind: FileKind) -> None:
        self._storage, self._kind, self._names = storage, kind, list[str]()

    async def put(self, content: AsyncIterable[bytes] | bytes) -> str:
        """Store the content; its name. Once this returns, it is whole, durable and never changed.
        Raises OSError.

        A scratch file may be taken as it is, without a copy: it is gone then.
        """
        storage = self._storage
        name = storage.new_name()
        # First: from the moment it can be listed, it must be known to be no orphan.
        storage._pending.add(name)
        self._names.append(name)
        await storage._store(self._kind, name, content)
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
