"""Files: the bundles and results that rows refer to, and local ones for a short time."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from server.domain.jobs import FileKind
from shared.clock import Micros

InUse = Callable[[Sequence[str]], Awaitable[set[str]]]
"""Those of the files' names that a row refers to."""


class PendingFiles(Protocol):
    """Files that are stored, and that no row refers to yet."""

    async def put(self, content: AsyncIterable[bytes] | bytes) -> str:
        """Store the content. Once this returns, it is whole, durable and never changed.

        A scratch file may be taken as it is, without a copy: it is gone then. Bytes in memory are
        for what is small.

        Returns:
            Its name: 32 hex digits.

        Raises:
            OSError: it was not stored.
        """
        ...

    def commit(self) -> None:
        """A row refers to the files now."""
        ...


class FileStream(Protocol):
    """Bytes of a stored file; they can be iterated over once.

    Attributes:
        size: bytes of the whole file.
    """

    @property
    def size(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Storage(Protocol):
    """Stored files, found by kind and name.

    Bytes before row, row before deletion: a crash at any point leaves a file that no row refers
    to, never a row whose file is gone. What a crash leaves is an orphan, and is deleted later.
    """

    def pending(self, kind: FileKind) -> AbstractAsyncContextManager[PendingFiles]:
        """Store files for a row that is about to be written.

        Files that are not committed at the end are deleted. After a cancellation they stay,
        because the row may still be written: the orphan sweep of the next run decides.
        """
        ...

    def open(
        self, kind: FileKind, name: str, start: int = 0, end: int | None = None
    ) -> AbstractAsyncContextManager[FileStream]:
        """Read a file, or the bytes from ``start`` up to, not including, ``end``.

        A file that is deleted meanwhile can be read to its end.

        Raises:
            FileNotFoundError, OSError
        """
        ...

    def local_copy(self, kind: FileKind, name: str) -> AbstractAsyncContextManager[Path]:
        """A path to read the file at, for what needs one; not to be written.

        Raises:
            FileNotFoundError: here, or when the path is opened.
        """
        ...

    def in_memory(self, kind: FileKind, name: str) -> bytes | None:
        """The whole content of a small file, if that is in memory because it was stored lately."""
        ...

    async def delete(self, files: Iterable[tuple[FileKind, str]]) -> None:
        """Delete files; one that is not there is no error.

        A file that cannot be deleted now is left to the orphan sweep.
        """
        ...

    async def list(self, kind: FileKind, after: str = "") -> list[str]:
        """Some of the names behind ``after``, in their order; empty: there are no more.

        Files that somebody else put there are not listed.
        """
        ...

    async def orphans(self, kind: FileKind, names: Sequence[str], in_use: InUse) -> Sequence[str]:
        """Those of the listed files that no row refers to, nor will.

        A file that this run has stored is none while it is pending.
        """
        ...

    async def stored_before(
        self, kind: FileKind, names: Sequence[str], at: Micros
    ) -> Sequence[str]:
        """Those of the files that were stored before that time."""
        ...

    async def delete_orphans(self, kind: FileKind, names: Sequence[str], in_use: InUse) -> int:
        """Delete the orphans among the listed files; how many."""
        ...


class ScratchFile(Protocol):
    """A local file that its owner writes; iterated over, it yields its content.

    Attributes:
        path: nothing is there at first.
        made: whether there may be something now. Whoever knows that there is nothing says so.
    """

    made: bool

    @property
    def path(self) -> Path: ...

    def reserve(self, count: int) -> None:
        """Before writing ``count`` more bytes, and after writing those before. Blocking.

        Raises:
            OSError: ENOSPC: too little disk space would stay free.
        """
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class NewScratchFile(Protocol):
    """A scratch file for ``async with``; in a thread, for ``with``."""

    def __enter__(self) -> ScratchFile: ...

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> ScratchFile: ...

    async def __aexit__(self, *_: object) -> None: ...


class Scratch(Protocol):
    """Scratch files, and how much of the disk may be used for them."""

    def file(self) -> NewScratchFile:
        """A new scratch file. Whatever is at its path at the end is removed."""
        ...

    def free_bytes(self) -> int:
        """Bytes of the disk that are free. Blocking."""
        ...

    def total_bytes(self) -> int:
        """Bytes of the disk."""
        ...

    def most(self) -> int:
        """Bytes that could be written if nothing else were on the disk. Blocking."""
        ...

    async def too_full_for(self, count: int) -> int | None:
        """How many bytes are free, if ``count`` more may not be written. None: they may, or the
        disk does not say so soon.
        """
        ...

    def measure(self) -> int:
        """Ask the disk; how many bytes may be written now. Blocking. Raises OSError."""
        ...

    def check_writable(self) -> None:
        """Raises OSError if a file cannot be made and written."""
        ...

    def clear(self) -> int:
        """At start: remove the files of earlier runs of the server; how many. Blocking."""
        ...
