"""Sealed files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """Sealed files on disk. Blocking work happens in threads."""

    def staging(self) -> AbstractContextManager[Path]:
        """A path for a file in the making; whatever is there at the end is removed."""
        ...

    def sealing(self, kind: str) -> AbstractContextManager[Sealing]:
        """Seal files of a kind ("bundles" or "results"); those not kept are removed at the end.

        After a cancellation they are left for :meth:`orphans` of the next start: the row may yet
        come.
        """
        ...

    def path(self, kind: str, name: str) -> Path: ...

    async def remove(self, files: Iterable[tuple[str, str]]) -> None:
        """Remove sealed files, given by kind and name."""
        ...

    async def shelves(self) -> list[tuple[str, str]]:
        """Kind and name of every folder that sealed files lie in."""
        ...

    async def orphans(
        self, kind: str, shelf: str, in_use: Callable[[Sequence[str]], Awaitable[set[str]]]
    ) -> int:
        """Remove the shelf's sealed files that nothing refers to and nobody is about to; how many.

        What the server did not put there is left alone.
        """
        ...

    def free_bytes(self) -> int: ...

    def room(self) -> int:
        """Bytes that may still be written by whoever reserves; may be negative."""
        ...

    def reserve(self) -> AbstractContextManager[Reservation]:
        """For writing one file; what was not used of it is given back at the end."""
        ...

    def check_writable(self) -> None:
        """Raises OSError when a file cannot be made, written and made durable."""
        ...

    async def clear_staging(self) -> int:
        """At start: remove what an earlier run left half done; how many files."""
        ...


class Reservation(Protocol):
    def take(self, count: int) -> None:
        """Before writing ``count`` more bytes; for threads, too.

        Raises:
            OSError: ENOSPC: too little would stay free.
        """
        ...


class Sealing(Protocol):
    async def seal(self, staged: Path) -> str:
        """Make the finished file durable; its name in the storage."""
        ...

    def keep(self) -> None:
        """A row refers to it now."""
        ...
