"""Expands an uploaded archive into a bundle: zip, tar and tar.gz, distinguished by content.

Folders are taken from the files' paths (empty ones are not kept). One leading ``./``, which tar
writes, is dropped. What macOS adds is left out: ``__MACOSX/``, ``.DS_Store``, and ``._*`` in the
AppleDouble format. Everything else is kept or refused by name, never skipped or renamed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shared.files.archives.tar_reader import BLOCK, TarReader, parse_header
from shared.files.archives.zip_reader import (
    MAX_LISTED,
    ZipEntry,
    inflate,
    read_content,
    read_entries,
    read_range,
)
from shared.files.bundles.writer import BundleWriter, Data, too_large
from shared.files.names import BundleError, UnsafeName, safe_path
from shared.files.opened import closing_fd

SUFFIXES: Final = (".zip", ".tar", ".tar.gz", ".tgz")
"""Ends of archives' file names, in lower case."""
MAX_RATIO: Final = 200
"""Unpacked to packed bytes. Text shrinks to a fifth, a table of zeros to a hundredth; Deflate stops
at 1032."""
ALWAYS_ALLOWED: Final = 16 << 20
"""Unpacked bytes to which no ratio applies: a small file may be very regular."""
_CHUNK: Final = 1 << 20
_APPLE_DOUBLE: Final = b"\x00\x05\x16\x07"
_OTHER_FORMATS: Final = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!": "RAR",
}


def is_archive_name(filename: str) -> bool:
    """Whether the name is that of an archive that can be expanded."""
    return filename.lower().endswith(SUFFIXES)


def expand(
    archive: Path, filename: str, writer: BundleWriter, *, max_files: int, max_bytes: int
) -> None:
    """Add every file of the archive to the bundle. Blocking: for a worker thread.

    Args:
        archive: where it is stored.
        filename: as the user calls it, for messages.
        max_files: folders and left-out files may be as many again.
        max_bytes: of all content, what is left out included.

    Raises:
        BundleError: names the entry at fault, or the archive.
        OSError
    """
    fd = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _Expansion(fd, writer, max_files, max_bytes).run()
    except BundleError as problem:
        if problem.part is None:
            raise BundleError(problem.code, problem.message, filename) from None
        raise
    finally:
        os.close(fd)


def expand_folder(
    archive: Path, folder: str, writer: BundleWriter, *, max_files: int, max_bytes: int
) -> None:
    """Add what a ZIP holds below a folder to the bundle, under the same rules. Blocking.

    Args:
        archive: the ZIP.
        folder: ends in "/", which names lose.
        max_files: of the folder; the archive may list many more.

    Raises:
        BundleError, OSError
    """
    with closing_fd(os.open(archive, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        expansion = _Expansion(fd, writer, max_files, max_bytes)
        below = [one for one in read_entries(fd, MAX_LISTED) if _is_in(one, folder)]
        expansion.add_entries([replace(one, name=one.name.removeprefix(folder)) for one in below])


def _is_in(entry: ZipEntry, folder: str) -> bool:
    return entry.name.startswith(folder) and entry.name != folder


class _Expansion:
    def __init__(self, fd: int, writer: BundleWriter, max_files: int, max_bytes: int) -> None:
        self._fd, self._writer, self._max_bytes = fd, writer, max_bytes
        self._size = os.fstat(fd).st_size
        self._max_entries = 2 * max_files + 1000
        self._content = 0

    def run(self) -> None:
        head = os.pread(self._fd, BLOCK, 0)
        if head.startswith((b"PK\3\4", b"PK\5\6")):
            self._zip()
        elif head.startswith(b"\x1f\x8b"):
            self._tar(self._gunzipped())
        elif _is_tar(head):
            self._tar(read_range(self._fd, 0, self._size, _CHUNK))
        else:
            other = next(
                (name for magic, name in _OTHER_FORMATS.items() if head.startswith(magic)), None
            )
            what = "it is no archive" if other is None else f"{other} archives are not read"
            raise BundleError("not_an_archive", f"{what}; send a .zip, .tar or .tar.gz")

    def _zip(self) -> None:
        self.add_entries(read_entries(self._fd, self._max_entries))

    def add_entries(self, entries: Sequence[ZipEntry]) -> None:
        """Add files of the archive, a ZIP."""
        self._check_ratio(sum(entry.size for entry in entries), self._size)
        for entry in entries:
            content = read_content(self._fd, entry, _CHUNK)
            self._add(entry.name, entry.is_folder, entry.executable, entry.size, content)

    def _tar(self, pieces: Iterator[bytes]) -> None:
        reader = TarReader(pieces, self._max_entries)
        for entry in reader:
            content = reader.content()
            self._add(entry.name, entry.is_folder, entry.executable, entry.size, content)

    def _gunzipped(self) -> Iterator[bytes]:
        total = 0
        packed = read_range(self._fd, 0, self._size, _CHUNK)
        for piece in inflate(packed, 16 + zlib.MAX_WBITS, _CHUNK):
            total += len(piece)
            self._check_ratio(total, self._size)
            yield piece

    def _check_ratio(self, unpacked: int, packed: int) -> None:
        if unpacked > ALWAYS_ALLOWED and unpacked > MAX_RATIO * packed:
            raise BundleError("bomb", f"it expands to more than {MAX_RATIO} times its size")

    def _add(
        self, name: str, is_folder: bool, executable: bool, size: int, content: Iterable[Data]
    ) -> None:
        path = name.removeprefix("./")
        if is_folder:
            path = path.removesuffix("/")
        if is_folder and path in {"", "."}:
            return
        self._content += size
        if self._content > self._max_bytes:
            raise too_large(self._max_bytes, name)
        pieces = iter(content)
        first = next(pieces, b"")
        if _is_from_macos(path, first):
            _check_name(path, name)
        elif is_folder:
            self._writer.check_folder(path)
        else:
            self._writer.add(path, executable=executable)
            self._writer.write(first)
            for piece in pieces:
                self._writer.write(piece)
            self._writer.end()
            return
        for _ in pieces:  # read to the end all the same, as its checksum must be right
            pass


def _is_tar(head: bytes) -> bool:
    if len(head) < BLOCK:
        return False
    try:
        parse_header(head)
    except BundleError:
        return False
    return True


def _is_from_macos(path: str, first: Data) -> bool:
    """What macOS adds to archives without its user's knowledge."""
    name = path.rpartition("/")[2]
    return (
        path == "__MACOSX"
        or path.startswith("__MACOSX/")
        or name == ".DS_Store"
        or (name.startswith("._") and bytes(first[:4]) == _APPLE_DOUBLE)
    )


def _check_name(path: str, sent: str) -> None:
    try:
        safe_path(path)
    except UnsafeName as problem:
        raise BundleError.of_name(problem, sent) from None
