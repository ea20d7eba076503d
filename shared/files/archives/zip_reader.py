"""Reads the table of contents of a ZIP and files of it: uploads, bundles, inputs, results.

The table of contents alone says what there is: names, kinds, sizes, checksums. A local header only
says where content begins. Memory is bounded: by a number of entries, or by a window of the table.
All entries together have no more packed bytes than the file; unpacked bytes and checksums are
compared as they are read.
"""

from __future__ import annotations

import os
import stat
import struct
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from isal import isal_zlib

from shared.files.archives.zip_headers import (
    CENTRAL,
    DEFLATED,
    END,
    END_64,
    LOCAL,
    LOCATOR_64,
    MAX_16,
    MAX_32,
    STORED,
)
from shared.files.names import BundleError

MAX_MERGED: Final = 200_000
"""Files and folders of other jobs that an attempt may get."""
MAX_LISTED: Final = 250_000
"""Files and folders that a result may list: an agent packs at most 200,000, and its own."""
_MEAN_ENTRY: Final = 1024
"""Bytes of the table of contents allowed per entry, on average, where all are kept."""
_WINDOW: Final = 1 << 20
_LONGEST: Final = CENTRAL.size + 3 * MAX_16
"""Bytes of the longest entry of a table of contents."""
_MAX_TRIES: Final = 20_000
_MAX_SIMILAR: Final = 3
_BRIEF: Final = struct.Struct("<4s8x2H8xL3H")
"""Of an entry: signature, time and date, unpacked size, lengths of name, extras, comment."""
_METHODS: Final = {
    1: "Shrink", 6: "Implode", 9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard",
    95: "xz", 97: "WavPack", 98: "PPMd", 99: "AES encryption",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """An entry of the table of contents.

    Attributes:
        raw: its name in the archive; ``name`` as text, with "/" at the end for a folder.
        packed: bytes in the archive.
        size: bytes when unpacked.
        at: where its local header begins in the file.
        modified: DOS date and time, as written: the date in the upper 16 bits.
    """

    raw: bytes
    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    at: int
    mode: int
    modified: int

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")

    @property
    def executable(self) -> bool:
        return bool(self.mode & 0o111)

    def check(self) -> ZipEntry:
        """The same, if it is a file or folder that can be read. Raises BundleError."""
        kind = stat.S_IFMT(self.mode)
        if self.flags & (1 | 1 << 6 | 1 << 13) or self.method == 99:
            raise BundleError("encrypted", "it is encrypted", self.name)
        if self.method not in {STORED, DEFLATED} or self.flags & 1 << 5:
            method = _METHODS.get(self.method, f"number {self.method}")
            why = f"it is compressed with {method}; only Deflate is read"
            raise BundleError("compression", why, self.name)
        if kind == stat.S_IFLNK:
            raise BundleError("link", "it is a symbolic link", self.name)
        if kind not in {0, stat.S_IFDIR if self.is_folder else stat.S_IFREG}:
            raise BundleError("special_file", "it is neither a file nor a folder", self.name)
        if self.is_folder and self.size:
            raise BundleError("lying_size", "it is a folder, but has content", self.name)
        if self.method == STORED and self.packed != self.size:
            raise BundleError("lying_size", "it is stored, but its two sizes differ", self.name)
        return self


class ListedFile(NamedTuple):
    """A file as a list shows it.

    Attributes:
        modified: DOS date and time, the date in the upper 16 bits.
        is_input: it is as it was sent.
    """

    path: str
    size: int
    modified: int
    is_input: bool = False


Content: TypeAlias = int | bytes
"""Descriptor of an open file, whose position is neither used nor moved; or what is in it."""


def size_of(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else os.fstat(content).st_size


def _pread(content: Content, length: int, at: int) -> bytes:
    """As ``os.pread``."""
    if isinstance(content, bytes):
        return content[at : at + length]
    return os.pread(content, length, at)


def _exactly(content: Content, length: int, at: int) -> bytes:
    """Raises BundleError: the archive ends before."""
    data = b""
    if 0 <= at <= size_of(content) - length:
        data = _pread(content, length, at)
    if len(data) != length:
        raise BundleError("truncated", "the archive is cut short or damaged")
    return data


def _damaged() -> BundleError:
    return BundleError("damaged", "the archive's table of contents is damaged")


def read_entries(content: Content, max_entries: int) -> list[ZipEntry]:
    """All entries, checked, in the order of the table of contents.

    Args:
        max_entries: files and folders; memory used is in proportion to this.

    Raises:
        BundleError
    """
    index = ZipIndex(content)
    if index.count > max_entries or index.length > max(1, max_entries) * _MEAN_ENTRY:
        raise BundleError("too_many_files", f"the archive lists more than {max_entries} entries")
    entries = [one.check() for one, _ in index.entries()]
    if len(entries) != index.count:
        raise _damaged()
    if sum(one.packed for one in entries) > size_of(content):
        raise BundleError("overlap", "its files have more bytes together than the archive")
    return entries


def spellings(path: str) -> set[str]:
    """What a file may be called that somebody asks for by this path."""
    return {path, unicodedata.normalize("NFC", path)}


class ZipIndex:
    """The table of contents of a ZIP, of which only a window is in memory. Its methods block.

    Attributes:
        count: files and folders, as the archive says.
        length: bytes of the table of contents: where positions in it end.
        weight: bytes of memory that a list of their names takes, about.

    Raises:
        BundleError: it is no ZIP, or cut short.
    """

    def __init__(self, content: Content) -> None:
        self._content = content
        self.count, self.length, self._first = _end(content)
        self.weight = 40 * self.count + self.length
        self._window, self._base = b"", 0

    def _see(self, at: int) -> tuple[bytes, int]:
        """A window that holds the entry at a position, and where in it that begins."""
        here, end = at - self._base, self._base + len(self._window)
        if here < 0 or (at + _LONGEST > end and end < self.length) or at >= end:
            self._base, here = at, 0
            self._window = _exactly(self._content, min(_WINDOW, self.length - at), self._first + at)
        return self._window, here

    def entries(self, at: int = 0) -> Iterator[tuple[ZipEntry, int]]:
        """Files and folders from a position of the table of contents on, and for each the position
        behind it.

        Raises:
            BundleError: damaged; or no entry begins at the position.
        """
        while at < self.length:
            window, here = self._see(at)
            one, behind = self._read(window, here)
            at += behind - here
            yield one, at

    def files(self, at: int = 0) -> Iterator[tuple[ZipEntry, int]]:
        """As :meth:`entries`, of files only."""
        return ((one, behind) for one, behind in self.entries(at) if not one.is_folder)

    def scan(self) -> Iterator[ListedFile]:
        """All files, with only what a list shows of them: several times as fast.

        Raises:
            BundleError: as :meth:`entries`.
        """
        at = 0
        while at < self.length:
            window, here = self._see(at)
            name_at = here + CENTRAL.size
            if len(window) < name_at:
                raise _damaged()
            magic, time, date, size, name, extra, comment = _BRIEF.unpack_from(window, here)
            raw = window[name_at : name_at + name]
            at += CENTRAL.size + name + extra + comment
            if magic != b"PK\1\2" or at > self._base + len(window):
                raise _damaged()
            if size != MAX_32 and raw.isascii():
                file = ListedFile(raw.decode(), size, date << 16 | time)
            else:
                one, _ = self._read(window, here)
                file = ListedFile(one.name, one.size, one.modified)
            if not file.path.endswith("/"):
                yield file

    def find(self, path: str) -> tuple[ZipEntry | None, list[str]]:
        """The file with this path, and if there is none, some with the same name elsewhere.

        Raises:
            BundleError: the file is damaged, encrypted, or compressed in a way that is not read.
        """
        if (entry := self.search(path)) is not None:
            return entry, []
        wanted = spellings(path)
        ending = "/" + path.rpartition("/")[2]
        similar: list[str] = []
        for one, _ in self.files():
            if one.name in wanted:
                return self._there(one), []
            if len(similar) < _MAX_SIMILAR and f"/{one.name}".endswith(ending):
                similar.append(one.name)
        return None, similar

    def search(self, path: str) -> ZipEntry | None:
        """The file that is listed under this very path; None: it may be listed in another way.

        Raises:
            BundleError: as :meth:`find`.
        """
        for name in spellings(path):
            if (found := self._search(name.encode())) is not None:
                return self._there(found)
        return None

    def _there(self, one: ZipEntry) -> ZipEntry:
        """The same, if all of it is there. Raises BundleError."""
        begin_of(self._content, one.check())
        return one

    def _search(self, raw: bytes) -> ZipEntry | None:
        """The file that is listed under this very name, without reading those before it; None:
        there is none, or the name stands in too many others.
        """
        tries = 0
        for base in range(0, self.length, _WINDOW):
            count = min(_WINDOW + _LONGEST, self.length - base)
            window = _exactly(self._content, count, self._first + base)
            at = window.find(raw)
            while 0 <= at < _WINDOW + CENTRAL.size:
                start, tries = at - CENTRAL.size, tries + 1
                if tries > _MAX_TRIES:
                    return None
                if start >= 0 and window.startswith(b"PK\1\2", start):
                    one, _ = self._read(window, start)
                    if one.raw == raw and not raw.endswith(b"/"):
                        return one
                at = window.find(raw, at + 1)
        return None

    def last(self) -> ZipEntry:
        """What is listed last. Raises BundleError: nothing is."""
        count = min(self.length, _LONGEST)
        window = _exactly(self._content, count, self._first + self.length - count)
        if (at := window.rfind(b"PK\1\2")) >= 0:
            one, behind = self._read(window, at)
            if behind == count:
                return one
        raise _damaged()

    def _read(self, directory: bytes, at: int) -> tuple[ZipEntry, int]:
        """The entry that begins there, and where the next one does. Raises BundleError."""
        if not directory.startswith(b"PK\1\2", at) or len(directory) - at < CENTRAL.size:
            raise _damaged()
        (
            _, _, _, flags, method, time, date, crc, packed, size,
            name_length, extra_length, comment_length, disk, _, attributes, header,
        ) = CENTRAL.unpack_from(directory, at)  # fmt: skip
        name_at = at + CENTRAL.size
        extra_at = name_at + name_length
        after = extra_at + extra_length + comment_length
        if after > len(directory):
            raise _damaged()
        raw = directory[name_at:extra_at]
        extras = _extras(directory[extra_at : extra_at + extra_length])
        name = _name(raw, extras)
        if disk not in {0, MAX_16}:
            raise BundleError("split_archive", "it lies in another volume", name)
        wide = [size, packed, header]
        full = [which for which, value in enumerate(wide) if value == MAX_32]
        values = extras.get(1, b"")
        if len(values) < 8 * len(full):
            raise BundleError("damaged", "its ZIP64 sizes are missing", name)
        for number, which in enumerate(full):
            wide[which] = int.from_bytes(values[8 * number : 8 * number + 8], "little")
        size, packed, header = wide
        mode, modified = attributes >> 16, date << 16 | time
        return ZipEntry(raw, name, flags, method, crc, packed, size, header, mode, modified), after


def _end(content: Content) -> tuple[int, int, int]:
    """Number of entries; length and first byte of the table of contents. Raises BundleError."""
    size = size_of(content)
    tail_size = min(size, END.size + MAX_16)
    tail = _exactly(content, tail_size, size - tail_size)
    at = tail.rfind(b"PK\5\6", 0, max(0, len(tail) - END.size + 4))
    if at < 0:
        raise BundleError("truncated", "the archive has no end record: it is cut short")
    _, disk, first_disk, here, count, length, start, comment = END.unpack_from(tail, at)
    if at + END.size + comment != len(tail):
        cut = at + END.size + comment > len(tail)
        why = "the archive is cut short" if cut else "something follows the end of the archive"
        raise BundleError("truncated" if cut else "trailing_data", why)
    end = size - tail_size + at
    if tail.startswith(b"PK\6\7", at - LOCATOR_64.size) and at >= LOCATOR_64.size:
        end -= LOCATOR_64.size + END_64.size
        record = END_64.unpack(_exactly(content, END_64.size, end))
        magic, _, _, _, disk, first_disk, here, count, length, start = record
        if magic != b"PK\6\6":
            raise BundleError("damaged", "the archive's ZIP64 end record is damaged")
    if disk or first_disk or here != count:
        raise BundleError("split_archive", "the archive is one of several volumes")
    if start + length != end:  # it is cut, and this is the end of one that lies in it
        raise BundleError("damaged", "the archive's table of contents is misplaced")
    return count, length, start


def _extras(data: bytes) -> dict[int, bytes]:
    """Extra fields by number, the first of each. A damaged rest is ignored, as other
    programs do.
    """
    extras: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        kind, length = struct.unpack_from("<2H", data, at)
        extras.setdefault(kind, data[at + 4 : at + 4 + length])
        at += 4 + length
    return extras


def _name(raw: bytes, extras: dict[int, bytes]) -> str:
    """Decode a name: always UTF-8, whether or not the flag says so (macOS does not set it).

    Old Windows programs write their code page, and some add the Unicode name in an extra field
    (0x7075)."""
    unicode = extras.get(0x7075, b"")
    try:
        if raw.isascii() or unicode[:1] != b"\1":
            return raw.decode()
        is_of_it = int.from_bytes(unicode[1:5], "little") == zlib.crc32(raw)
        return (unicode[5:] if is_of_it else raw).decode()
    except UnicodeDecodeError:
        shown = raw.decode(errors="backslashreplace")
        raise BundleError("bad_utf8", "its name is not valid UTF-8", shown) from None


_CHUNK: Final = 1 << 20
_PACKED_CHUNK: Final = 1 << 16


def begin_of(content: Content, entry: ZipEntry) -> int:
    """Where the packed bytes begin, all of which are there. Raises BundleError: they are not."""
    head = _exactly(content, LOCAL.size, entry.at)
    magic, *_, name_length, extra_length = LOCAL.unpack(head)
    begin: int = entry.at + LOCAL.size + name_length + extra_length
    if magic != b"PK\3\4":
        raise BundleError("damaged", "its header is damaged", entry.name)
    if begin + entry.packed > size_of(content):
        raise BundleError("truncated", "it reaches beyond the end of the archive", entry.name)
    return begin


def read_packed(
    content: Content, entry: ZipEntry, start: int, stop: int, chunk: int
) -> Iterator[bytes]:
    """Bytes of an entry as they lie in the archive, from ``start`` up to, not including, ``stop``,
    in pieces. Raises as :func:`begin_of`.
    """
    begin = begin_of(content, entry)
    yield from read_range(content, begin + start, stop - start, chunk, entry.name)


def read_content(content: Content, entry: ZipEntry, chunk: int = _CHUNK) -> Iterator[bytes]:
    """The unpacked content in pieces, each at most ``chunk`` bytes.

    Raises:
        BundleError: damaged, or longer or shorter than declared, or of another checksum. What was
            given out before must then be thrown away.
    """
    if entry.method == STORED:
        pieces = read_packed(content, entry, 0, entry.packed, chunk)
    else:
        packed = read_packed(content, entry, 0, entry.packed, _PACKED_CHUNK)
        pieces = inflate(packed, -zlib.MAX_WBITS, chunk, entry.name)
    crc = length = 0
    for piece in pieces:
        length += len(piece)
        if length > entry.size:
            raise BundleError("lying_size", "it is longer than it says", entry.name)
        crc = isal_zlib.crc32(piece, crc)
        yield piece
    if length != entry.size:
        raise BundleError("lying_size", "it is shorter than it says", entry.name)
    if crc != entry.crc:
        raise BundleError("bad_checksum", "it is damaged: its checksum is wrong", entry.name)


def read_range(
    content: Content, at: int, length: int, chunk: int, part: str | None = None
) -> Iterator[bytes]:
    """``length`` bytes of a file from ``at`` on, in pieces.

    Raises:
        BundleError: the file ends before.
    """
    end = at + length
    while at < end:
        data = _pread(content, min(chunk, end - at), at)
        if not data:
            raise BundleError("truncated", "the archive is cut short", part)
        at += len(data)
        yield data


def inflate(
    packed: Iterator[bytes], wbits: int, chunk: int, part: str | None = None
) -> Iterator[bytes]:
    """Decompress one Deflate stream, raw or gzip, in pieces of at most ``chunk`` bytes.

    Args:
        packed: the compressed bytes, nothing before and nothing behind.
        wbits: as zlib takes it: -15 for a raw stream, 31 for gzip with its checksum.

    Raises:
        BundleError: damaged, cut short, or something follows.
    """
    engine = zlib.decompressobj(wbits)
    try:
        for data in packed:
            while True:
                piece = engine.decompress(data, chunk)
                if piece:
                    yield piece
                data = engine.unconsumed_tail
                # A full piece may mean that more waits inside, although all input is taken.
                if engine.eof or not (data or len(piece) == chunk):
                    break
            if engine.eof:
                break
    except zlib.error:
        raise BundleError("damaged", "its compressed content is damaged", part) from None
    if not engine.eof:
        raise BundleError("truncated", "its compressed content is cut short", part)
    if engine.unused_data or next(packed, b""):
        raise BundleError("hidden_data", "something follows its compressed content", part)


def read_part(
    content: Content, entry: ZipEntry, start: int, stop: int, chunk: int = _CHUNK
) -> Iterator[bytes]:
    """The unpacked content from ``start`` up to, not including, ``stop``, in pieces. What is
    compressed has to be unpacked from its beginning: pieces of what is left out are empty.

    Raises:
        BundleError: as :func:`read_content`; the checksum is known only where all of it is read.
    """
    if (start, stop) == (0, entry.size):
        yield from read_content(content, entry, chunk)
        return
    if entry.method == STORED:
        yield from read_packed(content, entry, start, stop, chunk)
        return
    packed, at = read_packed(content, entry, 0, entry.packed, _PACKED_CHUNK), 0
    for piece in inflate(packed, -zlib.MAX_WBITS, chunk, entry.name):
        yield piece[max(0, start - at) : stop - at]
        at += len(piece)
        if at >= stop:
            return
    raise BundleError("lying_size", "it is shorter than it says", entry.name)
