"""One ZIP made of others: their entries under new names, compressed bytes copied as they are. A
result that refers to files of its bundle gets them from there.

It is made while it is sent. A first pass over the sources reads their directories, and so finds
out the size of the whole; a second one copies any range of it. Memory does not grow with the number
of sources: the new table of contents waits in a file. Sources are not trusted: names, sizes and
sizes together are checked before anything of a source is taken. Contents are not:
whoever unpacks them compares their checksums.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Final

from shared.files.archives.inputs_list import folder_of, not_there, read_list
from shared.files.archives.zip_headers import (
    EARLIEST,
    FILE,
    FOLDER,
    MAX_32,
    PROGRAM,
    Headers,
    end_records,
)
from shared.files.archives.zip_reader import (
    MAX_LISTED,
    Content,
    ZipEntry,
    begin_of,
    read_entries,
    read_packed,
    size_of,
)
from shared.files.names import BundleError, PathSet, UnsafeName, safe_path

_CHUNK: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Source:
    """A result, with what it refers to of its bundle.

    Attributes:
        prefix: put before its names; ends in "/". No two sources may share one, nor may one begin
            with another. Empty: there is one source only.
        inputs: how many files of the bundle it refers to.
        bundle: None: these are left out.
        folder: of the bundle, which the names lose; ends in "/", or is empty.
    """

    prefix: str
    result: Content
    inputs: int = 0
    bundle: Content | None = None
    folder: str = ""


class Merge:
    """A ZIP of others. Blocking: for a worker thread.

    ``add`` for each source, then ``end``; from then on ``size`` is that of the whole. The bytes of
    any range are those of the ``parts`` of it.

    Args:
        directory: an empty file for the table of contents.
        reserve: called before so many more bytes are written there; may raise OSError.

    Attributes:
        size: bytes so far.
        entries: files and folders so far.
    """

    def __init__(
        self, directory: IO[bytes], reserve: Callable[[int], None] = lambda count: None
    ) -> None:
        self._directory, self._reserve = directory, reserve
        self.size = self.entries = self._listed = 0
        self._ends = array("Q")
        """Of the sources, in the whole."""
        self._behind = self._end = b""
        """What stands before the table of contents and behind all sources; what stands behind it.
        """

    def add(self, source: Source) -> None:
        """Take a source into the table of contents.

        Raises:
            BundleError: it is damaged or not safe; nothing of it was taken.
            OSError
        """
        for headers, _, _ in _entries(source, self.size):
            self._take(headers)
        self._ends.append(self.size)

    def _take(self, headers: Headers) -> None:
        line = headers.central()
        self._reserve(len(line))
        self._listed += self._directory.write(line)
        self.entries += 1
        self.size += len(headers.local()) + headers.packed

    def end(self, name: str = "", text: bytes = b"") -> None:
        """All sources are added. A text becomes a file behind them."""
        if text:
            headers = _text(name, text, self.size)
            self._take(headers)
            self._behind = bytes(headers.local()) + text
        self._end = end_records(self.entries, self.size, self._listed)
        self.size += self._listed + len(self._end)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Which bytes of which source make the range of the whole from ``start`` up to, not
        including, ``stop``: its number and a range of it. What comes behind all sources has the
        number behind theirs.
        """
        number = bisect_right(self._ends, start)
        before = self._ends[number - 1] if number else 0
        for end in (*self._ends[number:], self.size):
            if before >= stop:
                return
            if start < end:
                yield number, max(start, before) - before, min(stop, end) - before
            number, before = number + 1, end

    def copy(self, source: Source, number: int, start: int, stop: int) -> Iterator[bytes]:
        """These bytes of a source that was added; all of its own, as in ``parts``.

        Raises:
            BundleError: it is another one by now, and the whole cannot be finished.
            OSError
        """
        before = self._ends[number - 1] if number else 0
        pending: list[bytes] = []
        waiting = at = 0
        for headers, entry, archive in _entries(source, before):
            local, first = bytes(headers.local()), at
            at += len(local) + headers.packed
            if first >= stop or at <= start:
                continue
            pending.append(local[max(0, start - first) : max(0, stop - first)])
            waiting += len(pending[-1])
            content = first + len(local)
            begin, end = max(start, content), min(stop, at)
            if begin >= end:
                continue
            for piece in read_packed(archive, entry, begin - content, end - content, _CHUNK):
                pending.append(piece)
                waiting += len(piece)
                if waiting >= _CHUNK:
                    yield b"".join(pending)
                    pending.clear()
                    waiting = 0
        if at != self._ends[number] - before:
            raise BundleError("changed", "it has changed while it was read")
        yield b"".join(pending)

    def tail(self, start: int, stop: int) -> Iterator[bytes]:
        """These bytes of what follows all sources."""
        yield self._behind[start:stop]
        start, stop = (max(0, at - len(self._behind)) for at in (start, stop))
        end = min(stop, self._listed)
        self._directory.seek(start)
        while start < end:
            data = self._directory.read(min(_CHUNK, end - start))
            if not data:
                raise BundleError("truncated", "its table of contents is gone")
            start += len(data)
            yield data
        yield self._end[max(0, start - self._listed) : max(0, stop - self._listed)]


def merged(source: Source) -> bytes:
    """The same ZIP of one source, all of it in memory: for small ones. Raises BundleError."""
    count, files, directory = 0, bytearray(), bytearray()
    for headers, entry, archive in _entries(source, 0):
        files += headers.local()
        files += b"".join(read_packed(archive, entry, 0, headers.packed, _CHUNK))
        directory += headers.central()
        count += 1
    return bytes(files + directory) + end_records(count, len(files), len(directory))


def _text(name: str, text: bytes, offset: int) -> Headers:
    headers = Headers(name, EARLIEST, FILE, offset)
    headers.size = headers.packed = len(text)
    headers.crc = zlib.crc32(text)
    return headers


def _entries(source: Source, offset: int) -> Iterator[tuple[Headers, ZipEntry, Content]]:
    """What is taken of a source, all of it checked before the first comes, and the file in which it
    lies.
    """
    taken = _taken(source)
    names = _names(source.prefix, [(name, entry.is_folder) for name, entry, _ in taken])
    for name, (_, entry, archive) in zip(names, taken, strict=True):
        mode = FOLDER if entry.is_folder else PROGRAM if entry.executable else FILE
        headers = Headers(name, _valid(entry.modified), mode, offset)
        if entry.size:  # an empty file is stored, however it was
            headers.method, headers.crc = entry.method, entry.crc
            headers.size, headers.packed = entry.size, entry.packed
            headers.zip64 = max(entry.size, entry.packed) >= MAX_32
        offset += len(headers.local()) + headers.packed
        yield headers, entry, archive


def _taken(source: Source) -> list[tuple[str, ZipEntry, Content]]:
    """Names without the prefix, entries, and the file of each; those of the bundle come first."""
    result, bundle = source.result, source.bundle
    entries = read_entries(result, MAX_LISTED)
    inputs: list[tuple[str, ZipEntry, Content]] = []
    if source.inputs:
        if not entries:
            raise BundleError("damaged", "the result has no list of inputs")
        listed = entries.pop()
        if bundle is not None:
            wanted = read_list(result, listed, source.inputs, size_of(bundle))
            inputs = _inputs(bundle, source.folder, wanted)
    taken = inputs + [(entry.name, entry, result) for entry in entries]
    for _, entry, archive in taken:
        begin_of(archive, entry)
    return taken


def _inputs(
    bundle: Content, folder: str, wanted: frozenset[str]
) -> list[tuple[str, ZipEntry, Content]]:
    entries = read_entries(bundle, MAX_LISTED)
    folder = folder_of((entry.name for entry in entries), folder)
    found = [
        (name, entry, bundle)
        for entry in entries
        if entry.name.startswith(folder) and (name := entry.name[len(folder) :]) in wanted
    ]
    if missing := wanted.difference(name for name, _, _ in found):
        raise not_there(min(missing))
    return found


def _names(prefix: str, taken: list[tuple[str, bool]]) -> list[str]:
    tree, names = PathSet(), list[str]()
    try:
        for name, is_folder in taken:
            path = safe_path(prefix + name.removesuffix("/" if is_folder else ""))
            if is_folder:
                tree.add_folder(path)
            else:
                tree.add(path)
            names.append(f"{path}/" if is_folder else path)
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
    return modified if ok else EARLIEST
