"""One ZIP made of many: their entries under new names, compressed bytes copied as they are.

It is made while it is sent. A first pass over the sources reads their directories, and so finds
out the size of the whole; a second one copies. Memory does not grow with the number of sources:
the new table of contents waits in a file. Sources are not trusted: names, sizes and positions are
checked by the strict reader before anything of a source is taken. Contents are not: whoever unpacks
them compares their checksums.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import IO, Final

from shared.files.archives.zip_directory import (
    FILE,
    FOLDER,
    MAX_32,
    MAX_LISTED,
    PROGRAM,
    Headers,
    ZipEntry,
    end_records,
    read_entries,
    read_range,
)
from shared.files.names import BundleError, PathSet, UnsafeName, safe_path

_CHUNK: Final = 1 << 17
_EARLIEST: Final = 1 << 21 | 1 << 16
"""1980-01-01 in DOS's words."""


class Merge:
    """A ZIP of other ZIPs. Blocking: for a worker thread.

    ``add`` for each source and ``add_text``, in the order of the file, then ``end``; from then on
    ``size`` is that of the whole. ``copy`` and ``text`` in the same order, then ``tail``.

    Args:
        directory: an empty file for the table of contents; ``close`` closes it.
        reserve: called before so many more bytes are written there; may raise OSError.

    Attributes:
        size: bytes so far.
        entries: files and folders so far.
    """

    def __init__(
        self, directory: IO[bytes], reserve: Callable[[int], None] = lambda count: None
    ) -> None:
        self._directory, self._reserve = directory, reserve
        self.entries = self._listed = self._start = 0
        self.size = 0

    def add(self, prefix: str, fd: int, start: int, size: int) -> int:
        """Take a source into the table of contents.

        Args:
            prefix: put before its names; ends in "/". No two sources may share one, nor may one
                begin with another.
            fd: open file that holds the source.
            start: where it begins there.
            size: its bytes.

        Returns:
            Bytes that it takes in the result, headers included.

        Raises:
            BundleError: it is damaged or not safe; nothing of it was taken.
            OSError
        """
        before = self.size
        for headers, _ in _entries(prefix, fd, start, size, before):
            self._take(headers)
        return self.size - before

    def add_text(self, name: str, text: bytes) -> None:
        """Take a file that is no source's."""
        self._take(_text(name, text, self.size))

    def _take(self, headers: Headers) -> None:
        line = headers.central()
        self._reserve(len(line))
        self._listed += self._directory.write(line)
        self.entries += 1
        self.size += len(headers.local()) + headers.packed

    def end(self) -> None:
        """All sources are added."""
        self._start = self.size
        self.size += self._listed + len(self._end())

    def _end(self) -> bytes:
        return end_records(self.entries, self._start, self._listed)

    def copy(self, prefix: str, fd: int, start: int, size: int, length: int) -> Iterator[bytes]:
        """The bytes of a source that was added; ``length``: what :meth:`add` said of it.

        Raises:
            BundleError: it is another one by now, and the whole cannot be finished.
            OSError
        """
        pending: list[bytes] = []
        waiting = 0
        for headers, entry in _entries(prefix, fd, start, size, 0):
            pending.append(bytes(headers.local()))
            waiting += len(pending[-1])
            for piece in read_range(fd, entry.offset, headers.packed, _CHUNK, entry.name):
                pending.append(piece)
                waiting += len(piece)
                if waiting >= _CHUNK:
                    length -= waiting
                    yield b"".join(pending)
                    pending.clear()
                    waiting = 0
        if waiting != length:
            raise BundleError("changed", "it has changed while it was read")
        yield b"".join(pending)

    def text(self, name: str, text: bytes) -> bytes:
        """The bytes of a file that was added."""
        return bytes(_text(name, text, 0).local()) + text

    def close(self) -> None:
        self._directory.close()

    def tail(self) -> Iterator[bytes]:
        """What follows all files."""
        self._directory.seek(0)
        while data := self._directory.read(_CHUNK):
            yield data
        yield self._end()


def _text(name: str, text: bytes, offset: int) -> Headers:
    headers = Headers(name, _EARLIEST, FILE, offset)
    headers.size = headers.packed = len(text)
    headers.crc = zlib.crc32(text)
    return headers


def _entries(
    prefix: str, fd: int, start: int, size: int, offset: int
) -> Iterator[tuple[Headers, ZipEntry]]:
    """The entries of a source, all of them checked before the first comes."""
    entries = read_entries(fd, MAX_LISTED, start, size)
    names = _names(prefix, entries)
    for name, entry in zip(names, entries, strict=True):
        mode = FOLDER if entry.is_folder else PROGRAM if entry.executable else FILE
        headers = Headers(name, _valid(entry.modified), mode, offset)
        if entry.size:  # an empty file is stored, however it was
            headers.method, headers.crc = entry.method, entry.crc
            headers.size, headers.packed = entry.size, entry.packed
            headers.zip64 = max(entry.size, entry.packed) >= MAX_32
        offset += len(headers.local()) + headers.packed
        yield headers, entry


def _names(prefix: str, entries: list[ZipEntry]) -> list[str]:
    tree, names = PathSet(), list[str]()
    try:
        for entry in entries:
            path = safe_path(prefix + entry.name.removesuffix("/" if entry.is_folder else ""))
            if entry.is_folder:
                tree.add_folder(path)
            else:
                tree.add(path)
            names.append(f"{path}/" if entry.is_folder else path)
        tree.check()
    except UnsafeName as problem:
        raise BundleError.of_name(problem) from None
    if len(set(names)) != len(names):
        raise BundleError("duplicate_name", "a folder of it is there twice")
    return names


def _valid(modified: int) -> int:
    """DOS date and time that every program reads."""
    month, day = modified >> 21 & 15, modified >> 16 & 31
    hour, minute, seconds = modified >> 11 & 31, modified >> 5 & 63, modified & 31
    ok = 1 <= month <= 12 and day and hour < 24 and minute < 60 and seconds < 30
    return modified if ok else _EARLIEST
