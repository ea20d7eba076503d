"""Reads a sealed bundle: checks it, unpacks it below a descriptor, streams one file of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.files.archives.zip_content import read_content, read_range
from shared.files.archives.zip_directory import STORED, ZipEntry, read_entries
from shared.files.bundles.format import (
    FILE_MODE,
    PROGRAM_MODE,
    BundleSummary,
    FileDigest,
    digest_of,
    root_of,
)
from shared.files.bundles.stream_digests import StreamDigests
from shared.files.descriptors import closing_fd
from shared.files.durable import write_all
from shared.files.errors import BundleError
from shared.files.names import PathSet, UnsafeName, safe_path

MAX_FILES: Final = 100_000
"""Most files of a bundle, for every reader: a program that took more could not pass it on."""
_FOLDER_MODE: Final = 0o755
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """One file of a bundle."""

    path: str
    """After root stripping."""
    size: int
    executable: bool


class BundleReader:
    """An open bundle, as a context manager. Blocking: for a worker thread.

    The bundle is not trusted: names are checked again, and its table of contents against the file.

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
        return read_range(self._fd, entry.offset, entry.size, chunk, path)

    def unpack(
        self,
        dir_fd: int,
        *,
        uid: int | None = None,
        gid: int | None = None,
        digest: str | None = None,
    ) -> BundleSummary:
        """Write all files below a folder, whose own owner and mode stay as they are.

        Args:
            dir_fd: of an empty folder that nothing else works in. No symbolic link is followed
                and nothing is overwritten, whatever is there.
            uid: owner of the new files and folders; None: whoever this process is.
            gid: their group, likewise.
            digest: to compare with; None: only the checksums are checked.

        Raises:
            BundleError: damaged, or its digest is another. The caller removes what was written.
            OSError: such as ENOSPC, or a file exists there already.
        """
        owner = (-1 if uid is None else uid, -1 if gid is None else gid)
        files = []
        with _Folders(dir_fd, owner) as folders:
            # In the order of components all files of a folder follow each other: one descriptor
            # per level is enough, and each folder is created once.
            for path, one in sorted(self._zip_entries.items(), key=lambda item: item[0].split("/")):
                *above, name = path.split("/")
                sha256 = hashlib.sha256()
                with closing_fd(os.open(name, _NEW_FILE, 0o600, dir_fd=folders.enter(above))) as fd:
                    for piece in read_content(self._fd, one):
                        sha256.update(piece)
                        write_all(fd, piece)
                    if owner != (-1, -1):
                        os.fchown(fd, *owner)
                    os.fchmod(fd, PROGRAM_MODE if one.executable else FILE_MODE)
                files.append(FileDigest(path, one.size, sha256.hexdigest()))
        summary = self._sum_up(files)
        if digest is not None:
            _compare(summary.digest, digest)
        return summary

    def _sum_up(self, files: list[FileDigest]) -> BundleSummary:
        size = sum(file.size for file in files)
        return BundleSummary(self._size, digest_of(files), len(files), size)


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


class _Folders:
    """Open descriptors from the root down to the folder into which files are written now."""

    def __init__(self, root: int, owner: tuple[int, int]) -> None:
        self._root, self._owner = root, owner
        self._open: list[tuple[str, int]] = []

    def __enter__(self) -> _Folders:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(0)

    def enter(self, path: list[str]) -> int:
        """A descriptor of the folder; the folder and those above it are created if not open."""
        common = 0
        for (name, _), wanted in zip(self._open, path, strict=False):
            if name != wanted:
                break
            common += 1
        self._leave(common)
        for name in path[common:]:
            parent = self._open[-1][1] if self._open else self._root
            os.mkdir(name, 0o700, dir_fd=parent)
            fd = os.open(name, _FOLDER, dir_fd=parent)
            self._open.append((name, fd))
            if self._owner != (-1, -1):
                os.fchown(fd, *self._owner)
            os.fchmod(fd, _FOLDER_MODE)
        return self._open[-1][1] if self._open else self._root

    def _leave(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])
