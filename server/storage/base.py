"""What is the same in every storage: names, files that no row refers to yet, orphans."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from server.domain.jobs import FileKind
from server.ports import InUse, PendingFiles

NAME: Final = re.compile(r"[0-9a-f]{32}")


class BaseStorage(ABC):
    """The part of ``ports.Storage`` that does not depend on where the files are.

    Args:
        new_name: gives 32 hex digits, others each time.
    """

    def __init__(self, new_name: Callable[[], str]) -> None:
        self._new_name = new_name
        self._pending = set[str]()

    @abstractmethod
    async def _store(
        self, kind: FileKind, name: str, content: AsyncIterable[bytes] | bytes
    ) -> None:
        """Store a new file: whole, durable and visible when this returns, or not at all."""

    @abstractmethod
    async def delete(self, files: Iterable[tuple[FileKind, str]]) -> None: ...

    @asynccontextmanager
    async def pending(self, kind: FileKind) -> AsyncIterator[PendingFiles]:
        files = _Pending(self, kind)
        try:
            yield files
        except Exception:
            await files.discard()
            raise
        # Not in a finally: whoever is cancelled may have a write under way that refers to the file.
        # It stays pending, so only the next run can find it to be an orphan.
        await files.discard()

    async def orphans(self, kind: FileKind, names: Sequence[str], in_use: InUse) -> Sequence[str]:
        candidates = [name for name in names if name not in self._pending]
        # Asked last: a candidate that was pending when it was listed has its row by now, or none.
        used = await in_use(candidates)
        return [name for name in candidates if name not in used]

    async def delete_orphans(self, kind: FileKind, names: Sequence[str], in_use: InUse) -> int:
        orphans = await self.orphans(kind, names, in_use)
        await self.delete((kind, name) for name in orphans)
        return len(orphans)


class _Pending:
    def __init__(self, storage: BaseStorage, kind: FileKind) -> None:
        self._storage, self._kind, self._names = storage, kind, list[str]()

    async def put(self, content: AsyncIterable[bytes] | bytes) -> str:
        storage = self._storage
        name = storage._new_name()
        # First: from the moment it can be listed, it must be known to be no orphan.
        storage._pending.add(name)
        self._names.append(name)
        await storage._store(self._kind, name, content)
        return name

    def commit(self) -> None:
        self._storage._pending.difference_update(self._names)
        self._names.clear()

    async def discard(self) -> None:
        if self._names:
            await self._storage.delete([(self._kind, name) for name in self._names])
            self.commit()
