"""Walks a job's directory by descriptors, twice: to count its entries, and to read them."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from client_agent.collect.contents import ResultsLimitExceeded
from client_agent.collect.selection import Part, Selection
from client_agent.storage import open_beneath
from client_agent.storage.open_beneath import raise_if_shortage
from shared.files.names import (
    MAX_DEPTH,
    MAX_PATH_BYTES,
    UnsafeName,
    fold,
    safe_path,
    shown,
    why_not_portable,
)

_SKIPPED: Final = (
    (stat.S_ISLNK, "a symlink"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a tree. Depth and length of paths are those of bundles, so that a result can be
    used as a bundle."""

    entries: int = 200_000
    """Files, folders and everything else."""
    depth: int = MAX_DEPTH
    path_bytes: int = MAX_PATH_BYTES


@dataclass(frozen=True, slots=True)
class TreeCount:
    """What the first walk counted."""

    entries: int
    bytes: int
    """Sum of apparent sizes. A sparse file counts in full, and a hard link once per name."""
    top: frozenset[str]
    """Names at the top level, with their case folded."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file, or a folder that contains nothing to pack."""

    path: str
    """Relative, safe on all systems, normalised to NFC."""
    is_folder: bool
    part: Part = Part.PACKED
    size: int = 0
    executable: bool = False
    modified: float = 0.0
    parent: int = -1
    """Descriptor of its directory, open until the next entry is requested."""
    name: str = ""
    status: os.stat_result | None = None
    may_chmod: bool = True

    @property
    def shown(self) -> str:
        return _shown(self.path)

    def open(self) -> int:
        """A descriptor of the file, for reading. Raises OSError if it was removed or replaced, or
        cannot be read."""
        if self.status is None:
            raise IsADirectoryError(errno.EISDIR, "it is a folder", self.name)
        return open_beneath.open_file(self.parent, self.name, self.status, may_chmod=self.may_chmod)


class Walk:
    """Two walks over one directory.

    Args:
        fd: descriptor of the directory; the caller closes it.
        may_chmod: modes may be changed so that everything can be read. False while the job runs.
        selection: the sizes of files that are not packed do not count.
    """

    def __init__(
        self, fd: int, bounds: Bounds, *, may_chmod: bool = True, selection: Selection | None = None
    ) -> None:
        self._fd, self._bounds, self._may_chmod = fd, bounds, may_chmod
        self._selection = selection or Selection()
        if may_chmod and os.fstat(fd).st_mode & 0o700 != 0o700:
            with suppress(PermissionError):
                os.fchmod(fd, 0o700)

    def _open_top(self) -> int:
        """A descriptor of the directory with a position of its own: others may list it, too."""
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)

    def count(self, max_bytes: int) -> TreeCount:
        """Count the tree before anything is read, in constant memory. Raises
        ResultsLimitExceeded."""
        bounds, entries, total = self._bounds, 0, 0
        top: set[str] = set()
        stack = [_Folder(self._open_top(), "")]
        try:
            while stack:
                folder = stack[-1]
                name = folder.next_name()
                if name is None:
                    stack.pop().close()
                    continue
                if len(stack) == 1:
                    top.add(fold(name))
                try:
                    status = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
                except OSError:
                    continue  # it was removed
                entries += 1
                path = folder.path + name
                length = len(os.fsencode(path))
                if entries > bounds.entries:
                    raise ResultsLimitExceeded("entries", bounds.entries, entries, shown(path))
                if len(stack) > bounds.depth:
                    raise ResultsLimitExceeded("depth", bounds.depth, len(stack), shown(path))
                if length > bounds.path_bytes:
                    raise ResultsLimitExceeded("path", bounds.path_bytes, length, shown(path))
                if stat.S_ISREG(status.st_mode):
                    total += self._size(folder.fd, name, _composed(path), status)
                    if total > max_bytes:
                        raise ResultsLimitExceeded("bytes", max_bytes, total, shown(path))
                elif stat.S_ISDIR(status.st_mode):
                    try:
                        fd = open_beneath.open_directory(folder.fd, name, may_chmod=self._may_chmod)
                    except OSError as problem:
                        raise_if_shortage(problem)
                        continue  # the second walk lists it
                    stack.append(_Folder(fd, path + "/"))
        finally:
            for folder in stack:
                folder.close()
        return TreeCount(entries, total, frozenset(top))

    def _size(self, folder: int, name: str, path: str, status: os.stat_result) -> int:
        """Bytes of a file that count."""
        try:
            is_packed = self._part(folder, name, path, status) is Part.PACKED
        except OSError as problem:
            raise_if_shortage(problem)
            return 0  # the second walk lists it
        return status.st_size if is_packed else 0

    def _part(self, folder: int, name: str, path: str, status: os.stat_result) -> Part:
        def open_file() -> int:
            return open_beneath.open_file(folder, name, status, may_chmod=self._may_chmod)

        return self._selection.part(path, status, open_file)

    def entries(
        self,
        skip: Callable[[str, str], None],
        taken: Iterable[str] = (),
        not_portable: Callable[[str, str], None] = lambda path, why: None,
    ) -> Iterator[Entry]:
        """The entries that can be packed, and those that the result refers to, sorted by name
        within each folder.

        Args:
            skip: called with (path safe to show, why) for everything else.
            taken: names at the top level that the agent's files have in the result. A file that
                got such a name after the count is not packed.
            not_portable: called with (path, why) for packed names that not all systems can store.
        """
        bounds, left = self._bounds, self._bounds.entries
        stack = [_Folder(self._open_top(), "", left + 1)]
        own = {fold(name) for name in taken}
        try:
            while stack:
                folder = stack[-1]
                name = folder.next_name()
                if name is None:
                    stack.pop().close()
                    if stack and folder.packed:
                        stack[-1].packed = True
                    elif stack and self._packs_folder(folder.safe[:-1]):
                        stack[-1].packed = True
                        yield Entry(folder.safe[:-1], is_folder=True, modified=folder.modified)
                    continue
                raw = folder.path + name
                try:
                    status = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
                    safe = safe_path(name)
                    path = folder.safe + safe
                    kind = next((kind for test, kind in _SKIPPED if test(status.st_mode)), None)
                    left -= 1
                    if kind is not None:
                        skip(_shown(raw), kind)
                    elif left < 0 or len(stack) > bounds.depth:
                        skip(_shown(raw), "it came while the rest was read, and exceeds a limit")
                    elif len(path.encode()) > bounds.path_bytes:  # NFC may be longer
                        skip(_shown(raw), f"its path is longer than {bounds.path_bytes} bytes")
                    elif safe in folder.taken or (len(stack) == 1 and fold(safe) in own):
                        skip(_shown(raw), "another name here differs only in case or composition")
                    elif stat.S_ISDIR(status.st_mode):
                        fd = open_beneath.open_directory(folder.fd, name, may_chmod=self._may_chmod)
                        folder.add_name(safe, path, not_portable)
                        below = _Folder(fd, f"{raw}/", left + 1)
                        below.safe, below.modified = f"{path}/", status.st_mtime
                        stack.append(below)
                    elif (part := self._part(folder.fd, name, path, status)) is not Part.LEFT_OUT:
                        folder.add_name(safe, path, not_portable)
                        folder.packed = True
                        yield Entry(
                            path=path,
                            is_folder=False,
                            part=part,
                            size=status.st_size,
                            executable=bool(status.st_mode & stat.S_IXUSR),
                            modified=status.st_mtime,
                            parent=folder.fd,
                            name=name,
                            status=status,
                            may_chmod=self._may_chmod,
                        )
                except UnsafeName as problem:
                    skip(_shown(raw), problem.why)
                except OSError as problem:
                    raise_if_shortage(problem)
                    skip(_shown(raw), problem.strerror or "it cannot be read")
        finally:
            for folder in stack:
                folder.close()

    def _packs_folder(self, path: str) -> bool:
        """Whether the empty folder is packed."""
        return self._selection.part(path, None, _no_file) is Part.PACKED


def _no_file() -> int:
    raise IsADirectoryError(errno.EISDIR, "it is a folder")


class _Folder:
    """One open folder of a walk.

    Args:
        fd: of the folder; :meth:`close` closes it.
        path: its path, with a slash at the end; empty at the top level.
        max_names: read and sort at most so many names. None: all, unsorted, and without
            remembering them.
    """

    def __init__(self, fd: int, path: str, max_names: int | None = None) -> None:
        self.fd, self.path = fd, path
        self.safe = ""
        """Its path in the result; not needed for counting."""
        self.taken: set[str] = set()
        """Names of this folder that are in the result."""
        self.names: dict[str, str] = {}
        """The same names: case folded -> as in the result."""
        self.packed = False
        self.modified = 0.0
        try:
            self._listing = os.scandir(fd)
        except BaseException:
            os.close(fd)
            raise
        self._names: Iterator[str] = (entry.name for entry in self._listing)
        if max_names is not None:
            # a running job may have made a million names after they were counted
            self._names = iter(sorted(itertools.islice(self._names, max_names), key=os.fsencode))

    def next_name(self) -> str | None:
        return next(self._names, None)

    def add_name(self, name: str, path: str, not_portable: Callable[[str, str], None]) -> None:
        """Note that ``name`` goes into the result, as ``path``."""
        self.taken.add(name)
        first = self.names.setdefault(fold(name), name)
        if first != name:
            not_portable(path, f"it differs only in case from {shown(first)}")
        elif why := why_not_portable(name):
            not_portable(path, why)

    def close(self) -> None:
        self._listing.close()
        os.close(self.fd)


def _composed(path: str) -> str:
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def _shown(path: str) -> str:
    return shown(path)[1:-1]
