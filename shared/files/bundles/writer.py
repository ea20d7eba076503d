"""Writing a sealed bundle while its files stream in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from isal import isal_zlib

from shared.files.archives.zip_headers import EARLIEST, FILE, PROGRAM, Headers, end_records
from shared.files.bundles.format import (
    ENTRY,
    GATHER,
    META,
    BundleSummary,
    FileDigest,
    digest_of,
    is_program,
    root_of,
)
from shared.files.names import (
    BundleError,
    NonPortableNames,
    PathSet,
    UnsafeName,
    problems,
    safe_path,
    why_not_portable,
)
from shared.files.staged_file import KeptFile, ReserveSpace

Data = bytes | bytearray | memoryview
_MAGIC_LENGTH: Final = 4
_SCRIPT_LENGTH: Final = 4_096
"""How far the line endings of run.sh are looked at."""
_CRLF: Final = (
    "run.sh has Windows line endings (CRLF): a shell takes the CR as part of its commands; save it "
    "with line endings of Unix (LF)"
)


class _OpenFile:
    """The file that is being written."""

    def __init__(self, path: str, offset: int, executable: bool) -> None:
        self.path, self.offset, self.executable = path, offset, executable
        self.headers = Headers(path, EARLIEST, FILE, offset)
        # Sizes are not known yet: room for 64 bits, as a header cannot grow when it is patched.
        self.headers.zip64 = True
        self.sha256 = hashlib.sha256()
        self.head = b""
        script = path.rpartition("/")[2] == ENTRY
        self.head_length = _SCRIPT_LENGTH if script else _MAGIC_LENGTH


class BundleWriter:
    """Writes a bundle to a staging path, in one pass, with flat memory; for a worker thread.

    ``add``, any number of ``write`` and ``end`` for each file, then ``finish``; or ``abort`` at any
    time. After an exception only ``abort`` may be called.

    Args:
        path: must not exist yet.
        max_files: more are refused.
        max_bytes: of all files together.
        reserve: called with the number of bytes before they are written.
        portable: whether names must be storable on every common system; else they get a warning.
        keep: a bundle of so many bytes is not written: the summary has it.

    Raises:
        OSError: here and from every method: the disk may be full.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_files: int,
        max_bytes: int,
        portable: bool = False,
        reserve: ReserveSpace | None = None,
        keep: int = 0,
    ) -> None:
        self._max_files, self._max_bytes = max_files, max_bytes
        self._portable = portable
        self._tree = PathSet()
        self._files: list[FileDigest] = []
        self._own_modes = False
        self._crlf: set[str] = set()
        """Those called run.sh that have Windows line endings."""
        self._bytes = 0
        self._open: _OpenFile | None = None
        self._directory: list[bytes] = []
        self._out = KeptFile(path, reserve, keep)

    @property
    def paths(self) -> Iterator[str]:
        """Of the files that are complete."""
        return (file.path for file in self._files)

    def add(self, name: str, *, executable: bool = False) -> None:
        """Begin a file.

        Args:
            name: as it was sent; refusals name it so.
            executable: as the archive says that it came from.

        Raises:
            BundleError: the name is unsafe, taken, or clashes; or there are too many files.
        """
        if len(self._files) >= self._max_files:
            raise BundleError("too_many_files", f"the bundle has more than {self._max_files} files")
        path = self._checked(name, self._tree.add)
        self._open = _OpenFile(path, self._out.size, executable)
        self._out.write(self._open.headers.local())

    def check_folder(self, name: str) -> None:
        """Take note of a folder, which no file may be; the folder itself is not stored. Raises
        BundleError.
        """
        self._checked(name, self._tree.add_folder)

    def _checked(self, name: str, add: Callable[[str], None]) -> str:
        try:
            path = safe_path(name)
            add(path)
        except UnsafeName as problem:
            raise BundleError.of_name(problem, name) from None
        if self._portable and (why := why_not_portable(path)):
            raise BundleError("unsafe_name", why, name)
        return path

    def _current(self) -> _OpenFile:
        if self._open is None:
            raise RuntimeError("add() a file first")
        return self._open

    def write(self, data: Data) -> None:
        """Append to the file that was begun last.

        Raises:
            BundleError: ``too_large``.
        """
        file = self._current()
        length = len(data)
        self._bytes += length
        if self._bytes > self._max_bytes:
            raise too_large(self._max_bytes, file.path)
        if (missing := file.head_length - len(file.head)) > 0:
            file.head += bytes(data[:missing])
        file.headers.size += length
        file.sha256.update(data)
        file.headers.crc = isal_zlib.crc32(data, file.headers.crc)
        self._out.write(data)

    def end(self) -> None:
        """The file is complete."""
        file = self._current()
        self._open = None
        looks_it = is_program(file.path, file.head)
        program = file.executable or looks_it
        self._own_modes |= program and not looks_it
        headers = file.headers
        headers.packed, headers.mode = headers.size, PROGRAM if program else FILE
        self._out.patch(file.offset, headers.local())
        self._directory.append(headers.central())
        if file.head_length == _SCRIPT_LENGTH and b"\r\n" in file.head:
            self._crlf.add(file.path)
        self._files.append(FileDigest(file.path, headers.size, file.sha256.hexdigest()))

    def finish(self) -> BundleSummary:
        """Finish the ZIP and fsync it, unless it is kept in memory. Its name becomes durable by
        :func:`durable.replace`.

        Raises:
            BundleError: names that exclude each other; no file, or no ``run.sh`` by the root rule.
        """
        paths = [file.path for file in self._files]
        try:
            self._tree.check()
        except UnsafeName as problem:
            raise BundleError.of_name(problem) from None
        root = root_of(paths)
        not_portable = NonPortableNames()
        for unportable in problems(paths):
            if self._portable:
                raise BundleError.of_name(unportable)
            not_portable.add(unportable.name, unportable.why)
        start, directory = self._out.size, b"".join(self._directory)
        self._out.write(directory + end_records(len(paths), start, len(directory)))
        size, content = self._out.size, self._out.content
        self._out.finish()
        digest = digest_of(
            FileDigest(file.path[len(root) :], file.size, file.sha256) for file in self._files
        )
        warnings = not_portable.warnings()
        if f"{root}{ENTRY}" in self._crlf:
            warnings = (_CRLF, *warnings)
        return BundleSummary(
            size,
            digest,
            len(paths),
            self._bytes,
            warnings,
            has_gather=f"{root}{GATHER}" in paths,
            has_meta=any(f"{path}/".startswith(f"{root}{META}/") for path in paths),
            own_modes=self._own_modes,
            content=content,
        )

    def abort(self) -> None:
        """Close and delete whatever is there, a sealed file too; may be repeated."""
        self._out.remove()


def too_large(max_bytes: int, part: str | None = None) -> BundleError:
    """The refusal of a bundle that is larger than it may be."""
    return BundleError(
        "too_large", f"the bundle is larger than the limit of {max_bytes} bytes", part
    )
