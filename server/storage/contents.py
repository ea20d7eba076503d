"""Stored contents, wherever they are."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from server.domain.jobs import FileKind
from server.storage.base import FileStream, Storage


class Stored(Protocol):
    """A bundle or a result that is stored."""

    @property
    def file(self) -> str: ...

    @property
    def size(self) -> int: ...


class Contents:
    """Reads bundles and results."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def local_copy(self, kind: FileKind, stored: Stored) -> AbstractAsyncContextManager[Path]:
        """A path to read it at, for what needs one; not to be written. One that is gone is missed
        here, or when the path is opened.
        """
        return self._storage.local_copy(kind, stored.file)

    def open(self, kind: FileKind, stored: Stored) -> AbstractAsyncContextManager[FileStream]:
        """Its bytes. Raises OSError."""
        return self._storage.open(kind, stored.file)
