"""Writes files below a descriptor, for whoever unpacks. Blocking."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

from shared.files.bundles.format import FILE_MODE, PROGRAM_MODE
from shared.files.descriptors import closing_fd
from shared.files.durable import write_all

_FOLDER_MODE: Final = 0o755
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
T = TypeVar("T")


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def in_order(files: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """Sorted by the components of their paths: all files of a folder follow each other, so that
    one descriptor per level is enough, and each folder is made once.
    """
    return sorted(files, key=lambda file: file[0].split("/"))


def hashed(pieces: Iterable[bytes], digest: _Hash) -> Iterator[bytes]:
    """The same pieces, each added to the digest before it is handed on."""
    for piece in pieces:
        digest.update(piece)
        yield piece


class FileWriter:
    """New files below a folder in which nothing else works, as a context manager.

    No symbolic link is followed and nothing is overwritten, whatever is there.

    Args:
        root: descriptor of the folder.
        uid: owner of new files and folders; None: whoever this process is.
        gid: their group, likewise.
        into_existing: folders that are there already are used, too.
    """

    def __init__(
        self, root: int, uid: int | None, gid: int | None, *, into_existing: bool = False
    ) -> None:
        self._root, self._into_existing = root, into_existing
        self._owner = (-1 if uid is None else uid, -1 if gid is None else gid)
        self._open: list[tuple[str, int]] = []
        """Folders from the root down to the one into which files are written now."""

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(0)

    def write(self, path: str, pieces: Iterable[bytes], *, executable: bool) -> None:
        """Write one file; the folders above it are made. Raises OSError."""
        *above, name = path.split("/")
        with closing_fd(os.open(name, _NEW_FILE, 0o600, dir_fd=self._enter(above))) as fd:
            for piece in pieces:
                write_all(fd, piece)
            if self._owner != (-1, -1):
                os.fchown(fd, *self._owner)
            os.fchmod(fd, PROGRAM_MODE if executable else FILE_MODE)

    def _enter(self, path: list[str]) -> int:
        """A descriptor of the folder; the folder and those above it are created if not open."""
        common = 0
        for (name, _), wanted in zip(self._open, path, strict=False):
            if name != wanted:
                break
            common += 1
        self._leave(common)
        for name in path[common:]:
            self._open.append((name, self._make(name, self._here())))
        return self._here()

    def _here(self) -> int:
        return self._open[-1][1] if self._open else self._root

    def _make(self, name: str, parent: int) -> int:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not self._into_existing:
                raise
            return os.open(name, _FOLDER, dir_fd=parent)
        fd = os.open(name, _FOLDER, dir_fd=parent)
        if self._owner != (-1, -1):
            os.fchown(fd, *self._owner)
        os.fchmod(fd, _FOLDER_MODE)
        return fd

    def _leave(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])
