"""Walks a hostile directory by descriptors, in a fixed order, twice: to count it, and to read
it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from client_agent import beneath
from client_agent.results import ResultsLimit
from shared.files.names import MAX_DEPTH, MAX_PATH_BYTES, UnsafeName, fold, safe_path, shown

_KINDS: Final = (
    (stat.S_ISLNK, "a symlink"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """On the shape of a tree. Depth and length are those of a bundle, so that a result can be
    one."""

    entries: int = 200_000
    """Files, folders and everything else."""
    depth: int = MAX_DEPTH
    path_bytes: int = MAX_PATH_BYTES


@dataclass(frozen=True, slots=True)
class Census:
    """What the first walk found."""

    entries: int
    bytes: int
    """Apparent sizes: a sparse file counts in full, and a hard link once per name."""
    top: frozenset[str]
    """Folded names at the top."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file, or a folder with nothing in it that can be packed."""

    path: str
    """Safe, relative, NFC."""
    is_folder: bool
    size: int = 0
    executable: bool = False
    modified: float = 0.0
    parent: int = -1
    """Descriptor of the directory; valid until the next entry is asked for."""
    name: str = ""
    seen: os.stat_result | None = None

    @property
    def shown(self) -> str:
        return _said(self.path)

    def open(self) -> int:
        """A descriptor of the file, for reading.

        Raises:
            OSError: it is gone, was replaced, or cannot be read.
        """
        if self.seen is None:
            raise IsADirectoryError(errno.EISDIR, "it is a folder", self.name)
        return beneath.open_file(self.parent, self.name, self.seen)


class Walk:
    """Two walks over one directory.

    Args:
        fd: descriptor of the directory; stays the caller's.
    """

    def __init__(self, fd: int, bounds: Bounds) -> None:
        self._fd, self._bounds = fd, bounds
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            with suppress(PermissionError):
                os.fchmod(fd, 0o700)

    def count(self, most_bytes: int) -> Census:
        """Count before anything is read, in memory that does not grow with the tree.

        Raises:
            ResultsLimit
        """
        bounds, entries, total = self._bounds, 0, 0
        top: set[str] = set()
        stack: list[_Level] = [_Level(os.dup(self._fd), "", None)]
        try:
            while stack:
                level = stack[-1]
                name = level.next_name()
                if name is None:
                    stack.pop().close()
                    continue
                if len(stack) == 1:
                    top.add(fold(name))
                try:
                    seen = os.stat(name, dir_fd=level.fd, follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                entries += 1
                path = level.path + name
                length = len(os.fsencode(path))
                if entries > bounds.entries:
                    raise ResultsLimit("entries", bounds.entries, entries, shown(path))
                if len(stack) > bounds.depth:
                    raise ResultsLimit("depth", bounds.depth, len(stack), shown(path))
                if length > bounds.path_bytes:
                    raise ResultsLimit("path", bounds.path_bytes, length, shown(path))
                if stat.S_ISREG(seen.st_mode):
                    total += seen.st_size
                    if total > most_bytes:
                        raise ResultsLimit("bytes", most_bytes, total, shown(path))
                elif stat.S_ISDIR(seen.st_mode):
                    try:
                        fd = beneath.open_directory(level.fd, name)
                    except OSError:
                        continue  # listed by the second walk
                    stack.append(_Level(fd, path + "/", None))
        finally:
            for level in stack:
                level.close()
        return Census(entries, total, frozenset(top))

    def entries(self, skip: Callable[[str, str], None]) -> Iterator[Entry]:
        """What can be packed, sorted by name within each folder.

        Args:
            skip: gets (path safe to show, why) for everything else.
        """
        left = self._bounds.entries
        stack: list[_Level] = [_Level(os.dup(self._fd), "", os.listdir(self._fd))]  # noqa: PTH208  # a descriptor
        try:
            while stack:
                level = stack[-1]
                name = level.next_name()
                if name is None:
                    stack.pop().close()
                    if stack and not level.packed:
                        stack[-1].packed = True
                        yield Entry(level.path[:-1], is_folder=True, modified=level.modified)
                    elif stack:
                        stack[-1].packed = True
                    continue
                raw = level.path + name
                try:
                    seen = os.stat(name, dir_fd=level.fd, follow_symlinks=False)
                    safe = safe_path(name)
                    kind = next((what for test, what in _KINDS if test(seen.st_mode)), None)
                    left -= 1
                    if kind is not None:
                        skip(_said(raw), kind)
                    elif left < 0 or len(stack) > self._bounds.depth:
                        skip(_said(raw), "it came while the rest was read, and is too much")
                    elif fold(safe) in level.folded:
                        skip(_said(raw), "another name here differs only in case or composition")
                    elif stat.S_ISDIR(seen.st_mode):
                        fd = beneath.open_directory(level.fd, name)
                        level.folded.add(fold(safe))
                        below = _Level(fd, f"{level.path}{safe}/", os.listdir(fd))  # noqa: PTH208
                        below.modified = seen.st_mtime
                        stack.append(below)
                    else:
                        level.folded.add(fold(safe))
                        level.packed = True
                        yield Entry(
                            path=level.path + safe,
                            is_folder=False,
                            size=seen.st_size,
                            executable=bool(seen.st_mode & stat.S_IXUSR),
                            modified=seen.st_mtime,
                            parent=level.fd,
                            name=name,
                            seen=seen,
                        )
                except UnsafeName as problem:
                    skip(_said(raw), problem.why)
                except OSError as problem:
                    skip(_said(raw), problem.strerror or "it cannot be read")
        finally:
            for level in stack:
                level.close()


class _Level:
    """One open folder of a walk.

    Args:
        path: its path with a slash at the end; empty at the top.
        names: to go through in order; None: as they come, without remembering them.
    """

    def __init__(self, fd: int, path: str, names: list[str] | None) -> None:
        self.fd, self.path = fd, path
        self.folded: set[str] = set()
        self.packed = False
        self.modified = 0.0
        self._listing = None if names is not None else os.scandir(fd)
        self._names = iter(sorted(names or (), key=os.fsencode))

    def next_name(self) -> str | None:
        if self._listing is None:
            return next(self._names, None)
        entry = next(self._listing, None)
        return None if entry is None else entry.name

    def close(self) -> None:
        if self._listing is not None:
            self._listing.close()
        os.close(self.fd)


def _said(path: str) -> str:
    return shown(path)[1:-1]
