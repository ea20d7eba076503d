"""Reads a sealed bundle: checks it, unpacks it below a descriptor, streams one file of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from shared.files.archives.zip_headers import STORED
from shared.files.archives.zip_reader import ZipEntry, read_content, read_entries, read_packed
from shared.files.bundles.format import (
    FILE_MODE,
    GATHER,
    PROGRAM_MODE,
    BundleSummary,
    FileDigest,
    digest_of,
    root_of,
)
from shared.files.bundles.stream_digests import StreamDigests
from shared.files.durable import write_all
from shared.files.names import BundleError, PathSet, UnsafeName, safe_path, shown
from shared.files.opened import closing_fd

_FOLDER_MODE: Final = 0o755
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
T = TypeVar("T")


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def in_order(files: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """Sorted by the components of their paths: all files of a folder follow each other, so that
    one descriptor per level is enough, and each folder is made once.
    """
    return sorted(files, key=lambda file: file[0].split("/"))


def hashed(pieces: Iterable[bytes], digest: Hash) -> Iterator[bytes]:
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

    def write(self, path: str, pieces: Iterable[bytes], *, executable: bool) -> os.stat_result:
        """Write one file; the folders above it are made. Its status. Raises OSError."""
        *above, name = path.split("/")
        with closing_fd(os.open(name, _NEW_FILE, 0o600, dir_fd=self._enter(above))) as fd:
            for piece in pieces:
                write_all(fd, piece)
            if self._owner != (-1, -1):
                os.fchown(fd, *self._owner)
            os.fchmod(fd, PROGRAM_MODE if executable else FILE_MODE)
            return os.fstat(fd)

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


Note = Callable[[str, str, os.stat_result], None]
"""Called with the path of a file that was unpacked, its SHA-256 and its status."""

MAX_FILES: Final = 100_000
"""Most files of a bundle, for every reader: a program that took more could not pass it on."""


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """One file of a bundle."""

    path: str
    """After root stripping."""
    size: int
    executable: bool


class BundleReader:
    """An open bundle, as a context manager. Blocking: for a worker thread.

    The bundle is not trusted: names, kinds and sizes are checked again.

    Args:
        path: the sealed ZIP.
        max_files: more are refused; memory used is in proportion to the number of files.

    Raises:
        BundleError: it is not a sealed bundle.
        OSError
    """

    def __init__(self, path: Path, *, max_files: int = MAX_FILES) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = os.fstat(self._fd).st_size
            entries = read_entries(self._fd, max_files)
            _check(entries)
            root = len(root_of([entry.name for entry in entries]))
        except BaseException:
            os.close(self._fd)
            raise
        self._zip_entries = {entry.name[root:]: entry for entry in entries}
        self.entries: Sequence[BundleEntry] = tuple(
            BundleEntry(path, entry.size, entry.executable)
            for path, entry in self._zip_entries.items()
        )

    def __enter__(self) -> BundleReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def inside(self, folder: str) -> dict[str, ZipEntry]:
        """The files of a folder, which ends in "/" (empty: of the whole bundle), by their paths in
        it.
        """
        if not folder:
            return self._zip_entries
        return {
            path[len(folder) :]: one
            for path, one in self._zip_entries.items()
            if path.startswith(folder)
        }

    def summary(self, digests: StreamDigests | None = None) -> BundleSummary:
        """Read all files, check their checksums, and sum the bundle up.

        Args:
            digests: was fed with the bytes of this ZIP; files that it knows are not read again.

        Raises:
            BundleError: a file is damaged.
        """
        files = []
        for path, one in self._zip_entries.items():
            known = None if digests is None else digests.sha256(one)
            files.append(FileDigest(path, one.size, known or self._sha256(one)))
        return self._sum_up(files)

    def _sha256(self, one: ZipEntry) -> str:
        sha256 = hashlib.sha256()
        for piece in read_content(self._fd, one):
            sha256.update(piece)
        return sha256.hexdigest()

    def content(self, path: str, chunk: int) -> Iterator[bytes]:
        """One file in pieces of at most ``chunk`` bytes; its checksum is not compared.

        Raises:
            KeyError: there is no such file.
            BundleError: the bundle is cut short.
        """
        entry = self._zip_entries[path]
        return read_packed(self._fd, entry, 0, entry.size, chunk)

    def unpack(
        self,
        dir_fd: int,
        *,
        uid: int | None = None,
        gid: int | None = None,
        digest: str | None = None,
        folder: str = "",
        note: Note | None = None,
    ) -> None:
        """Write all files below a folder, whose own owner and mode stay as they are.

        Args:
            dir_fd: of an empty folder that nothing else works in. No symbolic link is followed
                and nothing is overwritten, whatever is there.
            uid: owner of the new files and folders; None: whoever this process is.
            gid: their group, likewise.
            digest: to compare with; None: only the checksums are checked.
            folder: of the bundle, ending in "/": only what is in it is written, without its name.
                Of such a part only the checksums are checked.
            note: called for each file.

        Raises:
            BundleError: damaged, or its digest is another, or there is no such folder. The caller
                removes what was written.
            OSError: such as ENOSPC, or a file exists there already.
        """
        found = self.inside(folder)
        if folder and not found:
            raise BundleError("no_folder", f"the bundle has no folder {shown(folder)}")
        files = []
        with FileWriter(dir_fd, uid, gid) as writer:
            for path, one in in_order(found.items()):
                sha256 = hashlib.sha256()
                pieces = hashed(read_content(self._fd, one), sha256)
                status = writer.write(path, pieces, executable=one.executable)
                files.append(FileDigest(path, one.size, sha256.hexdigest()))
                if note is not None:
                    note(path, files[-1].sha256, status)
        if digest is not None and not folder:
            _compare(digest_of(files), digest)

    def _sum_up(self, files: list[FileDigest]) -> BundleSummary:
        size = sum(file.size for file in files)
        has_gather = any(file.path == GATHER for file in files)
        return BundleSummary(self._size, digest_of(files), len(files), size, has_gather=has_gather)


def _check(entries: list[ZipEntry]) -> None:
    tree = PathSet()
    for one in entries:
        if one.is_folder or one.method != STORED:
            raise BundleError("not_sealed", "a sealed bundle holds only stored files", one.name)
        try:
            if safe_path(one.name) != one.name:
                raise BundleError("unsafe_name", "its name is not normalised (NFC)", one.name)
            tree.add(one.name)
        except UnsafeName as problem:
            raise BundleError.of_name(problem) from None
    try:
        tree.check()
    except UnsafeName as problem:
        raise BundleError.of_name(problem) from None


def _compare(actual: str, promised: str) -> None:
    if actual != promised:
        raise BundleError(
            "digest_mismatch", f"the bundle's content has the digest {actual}, not {promised}"
        )


MAX_ENTRIES: Final = 200_000
"""Files and folders; memory used is in proportion to this."""


class InputsReader:
    """An open ZIP of inputs, as a context manager. It is not trusted: its names and its table of
    contents are checked as those of an uploaded archive are.

    Attributes:
        files: path -> its entry.
        size: bytes of all files, unpacked.

    Raises:
        BundleError, OSError
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.files = _checked(read_entries(self._fd, MAX_ENTRIES))
        except BaseException:
            os.close(self._fd)
            raise
        self.size = sum(one.size for one in self.files.values())

    def __enter__(self) -> InputsReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def unpack(
        self,
        dir_fd: int,
        bundle: Iterable[str],
        uid: int | None,
        gid: int | None,
        note: Note | None = None,
    ) -> int:
        """Write the files below a folder that holds a bundle's. The bundle's own are kept: a file
        of their name, or in the place of their folder or below their file, is left out.

        Args:
            bundle: paths of the bundle's files.
            note: called for each file that is written.

        Returns:
            How many files were left out.

        Raises:
            BundleError: damaged. The caller removes what was written.
            OSError
        """
        files = set(bundle)
        folders = {above for path in files for above in _folders_above(path)}
        left_out = 0
        with FileWriter(dir_fd, uid, gid, into_existing=True) as writer:
            for path, one in in_order(self.files.items()):
                if path in files or path in folders or not files.isdisjoint(_folders_above(path)):
                    left_out += 1
                    continue
                sha256, pieces = hashlib.sha256(), read_content(self._fd, one)
                if note is not None:
                    pieces = hashed(pieces, sha256)
                status = writer.write(path, pieces, executable=one.executable)
                if note is not None:
                    note(path, sha256.hexdigest(), status)
        return left_out


def _folders_above(path: str) -> list[str]:
    components = path.split("/")
    return ["/".join(components[:count]) for count in range(1, len(components))]


def _checked(entries: list[ZipEntry]) -> dict[str, ZipEntry]:
    """The files by their safe paths. Folders without files are left out."""
    tree, files = PathSet(), dict[str, ZipEntry]()
    try:
        for one in entries:
            path = safe_path(one.name.removesuffix("/") if one.is_folder else one.name)
            if not one.is_folder:
                tree.add(path)
                files[path] = one
        tree.check()
    except UnsafeName as problem:
        raise BundleError.of_name(problem) from None
    return files
