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
from shared.files.bundles.file_writer import FileWriter, hashed, in_order
from shared.files.bundles.format import (
    GATHER,
    BundleSummary,
    FileDigest,
    digest_of,
    root_of,
)
from shared.files.bundles.stream_digests import StreamDigests
from shared.files.errors import BundleError
from shared.files.names import PathSet, UnsafeName, safe_path, shown

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
        return read_range(self._fd, entry.offset, entry.size, chunk, path)

    def unpack(
        self,
        dir_fd: int,
        *,
        uid: int | None = None,
        gid: int | None = None,
        digest: str | None = None,
        folder: str = "",
    ) -> BundleSummary:
        """Write all files below a folder, whose own owner and mode stay as they are.

        Args:
            dir_fd: of an empty folder that nothing else works in. No symbolic link is followed
                and nothing is overwritten, whatever is there.
            uid: owner of the new files and folders; None: whoever this process is.
            gid: their group, likewise.
            digest: to compare with; None: only the checksums are checked.
            folder: of the bundle, ending in "/": only what is in it is written, without its name.
                Of such a part only the checksums are checked.

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
                writer.write(path, pieces, executable=one.executable)
                files.append(FileDigest(path, one.size, sha256.hexdigest()))
        summary = self._sum_up(files)
        if digest is not None and not folder:
            _compare(summary.digest, digest)
        return summary

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
