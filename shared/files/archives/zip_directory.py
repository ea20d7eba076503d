"""A strict reader of the directory of a ZIP file, for users' archives and for our own bundles.

Every byte of the file must belong to exactly one entry, the central directory or the end record,
and local headers must say what the central directory says. That excludes all known ZIP tricks:
overlapping entries (one compressed block used a thousand times), entries that only some programs
see, prefixes and suffixes, false sizes.

The standard library's ``zipfile`` is too forgiving for this: it loads a central directory of any
size, cuts names at a NUL, stops silently at the declared size, searches for a directory behind
garbage, and before 3.11.8 does not look for overlaps.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from isal import isal_zlib

from shared.files.names import BundleError

STORED: Final = 0
DEFLATED: Final = 8
EARLIEST: Final = 1 << 21 | 1 << 16
"""DOS date and time of 1980-01-01: that of every file of a bundle, and where none is known."""
MAX_MERGED: Final = 200_000
"""Files and folders of other jobs that an attempt may get."""
MAX_LISTED: Final = 250_000
"""Files and folders that a result may list: an agent packs at most 200,000, and its own."""
_METHODS: Final = {
    1: "Shrink", 6: "Implode", 9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard",
    95: "xz", 97: "WavPack", 98: "PPMd", 99: "AES encryption",
}  # fmt: skip

_LOCAL: Final = struct.Struct("<4s5H3L2H")
_CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
_END: Final = struct.Struct("<4s4H2LH")
_LOCATOR64: Final = struct.Struct("<4sLQL")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_FULL16: Final = 0xFFFF
_FULL32: Final = 0xFFFFFFFF
_MEAN_DIRECTORY_ENTRY: Final = 1024
"""Bytes of the central directory allowed per entry, on average; it is read into memory."""


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One entry, all of it checked but the content."""

    name: str
    """As written, ``/`` at the end for a folder."""
    is_folder: bool
    executable: bool
    method: int
    crc: int
    packed: int
    """Bytes in the archive."""
    size: int
    """Bytes when unpacked, as declared."""
    offset: int
    """Of the first packed byte in the file."""
    modified: int = 0
    """DOS date and time, as written: the date in the upper 16 bits."""


Content: TypeAlias = int | bytes
"""Descriptor of an open file; or what is in it."""


def size_of(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else os.fstat(content).st_size


def pread(content: Content, length: int, at: int) -> bytes:
    """As ``os.pread``."""
    if isinstance(content, bytes):
        return content[at : at + length]
    return os.pread(content, length, at)


class Archive:
    """Bytes that should be an archive."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.size = size_of(content)

    def read(self, offset: int, length: int) -> bytes:
        """Raises BundleError: the archive ends before."""
        data = b""
        if 0 <= offset <= self.size - length:
            data = pread(self._content, length, offset)
        if len(data) != length:
            raise BundleError("truncated", "the archive is cut short or damaged")
        return data


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry as the central directory has it."""

    raw: bytes
    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    header: int
    mode: int
    modified: int

    def refused(self, code: str, message: str) -> BundleError:
        return BundleError(code, message, self.name)


def read_entries(content: Content, max_entries: int) -> list[ZipEntry]:
    """Read the table of contents and check it against the whole file, in the order of the file.

    Args:
        content: the archive. The position of a file is neither used nor moved.
        max_entries: files and folders; memory used is in proportion to this.

    Raises:
        BundleError
    """
    archive = Archive(content)
    count, first, length = find_directory(archive)
    if count > max_entries or length > max(1, max_entries) * _MEAN_DIRECTORY_ENTRY:
        raise BundleError("too_many_files", f"the archive lists more than {max_entries} entries")
    directory = archive.read(first, length)
    listed = sorted(_list(directory, count), key=lambda one: one.header)
    entries = []
    position = 0
    for one in listed:
        entry, position = locate(archive, one, position, first)
        entries.append(entry)
    if position != first:
        raise BundleError("hidden_data", "the archive holds bytes that belong to no entry")
    return entries


def find_directory(archive: Archive) -> tuple[int, int, int]:
    """Number of entries, first byte and length of the central directory."""
    size = archive.size
    tail_size = min(size, _END.size + _FULL16)
    tail = archive.read(size - tail_size, tail_size)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise BundleError("truncated", "the archive has no end record: it is cut short")
    end = size - len(tail) + at
    _, disk, first_disk, here, count, length, start, comment = _END.unpack_from(tail, at)
    if end + _END.size + comment != size:
        raise BundleError("trailing_data", "something follows the end of the archive")
    if at >= _LOCATOR64.size and tail.startswith(b"PK\6\7", at - _LOCATOR64.size):
        end -= _LOCATOR64.size
        _, at_disk, record, disks = _LOCATOR64.unpack_from(tail, at - _LOCATOR64.size)
        # The record of our kind has no extensible part, so it must end where the locator begins.
        if record + _END64.size != end or at_disk or disks > 1:
            raise BundleError("damaged", "the archive's ZIP64 end record is not where it should be")
        end = record
        fields = _END64.unpack(archive.read(record, _END64.size))
        narrow = (disk, first_disk, here, count, length, start)
        magic, rest, _, _, disk, first_disk, here, count, length, start = fields
        agree = all(
            wide == short or short in {_FULL16, _FULL32}
            for wide, short in zip(fields[4:], narrow, strict=True)
        )
        if magic != b"PK\6\6" or rest != _END64.size - 12 or not agree:
            raise BundleError("damaged", "the archive's ZIP64 end record is damaged")
    if disk or first_disk or here != count:
        raise BundleError("split_archive", "the archive is one of several volumes")
    if start + length != end:
        raise BundleError("damaged", "the archive's table of contents is misplaced")
    return count, start, length


def _list(directory: bytes, count: int) -> Iterator[Listed]:
    at = 0
    for _ in range(count):
        one, at = read_listed(directory, at)
        yield one
    if at != len(directory):
        raise BundleError("damaged", "the archive's table of contents is longer than it says")


def read_listed(directory: bytes, at: int) -> tuple[Listed, int]:
    """The entry that the central directory has at a position, and where the next one begins. Raises
    BundleError.
    """
    if not directory.startswith(b"PK\1\2", at) or len(directory) - at < _CENTRAL.size:
        raise BundleError("damaged", "the archive's table of contents is damaged")
    (
        _, _, _, flags, method, time, date, crc, packed, size,
        name_length, extra_length, comment_length, disk, _, attributes, header,
    ) = _CENTRAL.unpack_from(directory, at)  # fmt: skip
    name_at = at + _CENTRAL.size
    extra_at = name_at + name_length
    after = extra_at + extra_length + comment_length
    if after > len(directory):
        raise BundleError("damaged", "the archive's table of contents is damaged")
    raw = directory[name_at:extra_at]
    extras = _extras(directory[extra_at : extra_at + extra_length])
    name = _name(raw, extras)
    zip64 = _Zip64Fields(extras.get(1, b""), name)
    size, packed, header = zip64.value(size), zip64.value(packed), zip64.value(header)
    if disk == _FULL16:
        disk = 0
    mode, modified = attributes >> 16, date << 16 | time
    one = Listed(raw, name, flags, method, crc, packed, size, header, mode, modified)
    if disk:
        raise one.refused("split_archive", "it lies in another volume")
    return one, after


class _Zip64Fields:
    """The 64-bit values of those 32-bit fields that are full, in their order."""

    def __init__(self, extra: bytes, name: str) -> None:
        self._extra, self._name = extra, name

    def value(self, short: int) -> int:
        if short != _FULL32:
            return short
        if len(self._extra) < 8:
            raise BundleError("damaged", "its ZIP64 sizes are missing", self._name)
        value = int.from_bytes(self._extra[:8], "little")
        self._extra = self._extra[8:]
        return value


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
        if unicode[:1] == b"\1" and int.from_bytes(unicode[1:5], "little") == zlib.crc32(raw):
            name = unicode[5:].decode()
            if raw.isascii() and raw.decode() != name:
                raise BundleError("two_names", "it has two names that differ", name)
            return name
        return raw.decode()
    except UnicodeDecodeError:
        shown = raw.decode(errors="backslashreplace")
        raise BundleError("bad_utf8", "its name is not valid UTF-8", shown) from None


def locate(archive: Archive, one: Listed, position: int, end: int) -> tuple[ZipEntry, int]:
    """Check the entry that must begin at ``position``; also returns where the next one must."""
    _check_kind(one)
    if one.header < position:
        raise one.refused("overlap", "it overlaps another entry of the archive")
    if one.header > position:
        raise one.refused("hidden_data", "before it are bytes that belong to no entry")
    if one.header + _LOCAL.size > end:
        raise one.refused("truncated", "it reaches beyond the end of the archive")
    (magic, _, flags, method, _, _, crc, packed, size, name_length, extra_length) = _LOCAL.unpack(
        archive.read(one.header, _LOCAL.size)
    )
    rest = archive.read(one.header + _LOCAL.size, name_length + extra_length)
    if magic != b"PK\3\4":
        raise one.refused("damaged", "its header is damaged")
    if rest[:name_length] != one.raw:
        raise one.refused("two_names", "it has another name in the table of contents")
    if (method, flags & 9) != (one.method, one.flags & 9):
        raise one.refused("lying_header", "its header differs from the table of contents")
    offset = one.header + _LOCAL.size + name_length + extra_length
    after = offset + one.packed
    if after > end:
        raise one.refused("truncated", "it reaches beyond the end of the archive")
    if flags & 8:
        after += _descriptor(archive, one, after, end)
    else:
        zip64 = _Zip64Fields(_extras(rest[name_length:]).get(1, b""), one.name)
        # In a local header the 64-bit sizes come both or not at all, in this order.
        sizes = (zip64.value(size), zip64.value(packed))
        if (crc, *sizes) != (one.crc, one.size, one.packed):
            raise one.refused("lying_header", "it has other sizes in the table of contents")
    if one.method == STORED and one.packed != one.size:
        raise one.refused("lying_size", "it is stored, but its two sizes differ")
    is_folder = one.name.endswith("/")
    if is_folder and one.size:
        raise one.refused("lying_header", "it is a folder, but has content")
    executable = bool(one.mode & 0o111)
    what = (one.name, is_folder, executable, one.method, one.crc, one.packed, one.size)
    return ZipEntry(*what, offset, one.modified), after


def _check_kind(one: Listed) -> None:
    if one.flags & (1 | 1 << 6 | 1 << 13) or one.method == 99:
        raise one.refused("encrypted", "it is encrypted")
    if one.method not in {STORED, DEFLATED} or one.flags & 1 << 5:
        method = _METHODS.get(one.method, f"number {one.method}")
        raise one.refused("compression", f"it is compressed with {method}; only Deflate is read")
    kind = stat.S_IFMT(one.mode)
    if kind == stat.S_IFLNK:
        raise one.refused("link", "it is a symbolic link")
    folder = one.name.endswith("/")
    if kind not in {0, stat.S_IFDIR if folder else stat.S_IFREG}:
        raise one.refused("special_file", "it is neither a file nor a folder")


def _descriptor(archive: Archive, one: Listed, at: int, end: int) -> int:
    """Length of the data descriptor behind the content, which must repeat the listed sizes.

    Writers differ: it may have a signature or not, and sizes of 32 or 64 bits.
    """
    data = archive.read(at, min(24, end - at))
    for layout in ("<2Q", "<2L"):
        try:
            sizes = struct.pack("<L", one.crc) + struct.pack(layout, one.packed, one.size)
        except struct.error:
            continue
        for descriptor in (b"PK\7\x08" + sizes, sizes):
            if data.startswith(descriptor):
                return len(descriptor)
    raise one.refused("lying_header", "the sizes behind it differ from the table of contents")


_CHUNK: Final = 1 << 20
_PACKED_CHUNK: Final = 1 << 16


def read_content(fd: Content, entry: ZipEntry, chunk: int = _CHUNK) -> Iterator[bytes]:
    """The unpacked content in pieces, each at most ``chunk`` bytes.

    Raises:
        BundleError: damaged, or longer or shorter than declared, or of another checksum. What was
            given out before must then be thrown away.
    """
    if entry.method == STORED:
        pieces = read_range(fd, entry.offset, entry.packed, chunk, entry.name)
    else:
        packed = read_range(fd, entry.offset, entry.packed, _PACKED_CHUNK, entry.name)
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
    fd: Content, at: int, length: int, chunk: int, part: str | None = None
) -> Iterator[bytes]:
    """``length`` bytes of a file from ``at`` on, in pieces.

    Raises:
        BundleError: the file ends before.
    """
    end = at + length
    while at < end:
        data = pread(fd, min(chunk, end - at), at)
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
    fd: int, entry: ZipEntry, start: int, stop: int, chunk: int = _CHUNK
) -> Iterator[bytes]:
    """The unpacked content from ``start`` up to, not including, ``stop``, in pieces. What is
    compressed has to be unpacked from its beginning: pieces of what is left out are empty.

    Raises:
        BundleError: as :func:`read_content`; the checksum is known only where all of it is read.
    """
    if (start, stop) == (0, entry.size):
        yield from read_content(fd, entry, chunk)
        return
    if entry.method == STORED:
        yield from read_range(fd, entry.offset + start, stop - start, chunk, entry.name)
        return
    packed, at = read_range(fd, entry.offset, entry.packed, _PACKED_CHUNK, entry.name), 0
    for piece in inflate(packed, -zlib.MAX_WBITS, chunk, entry.name):
        yield piece[max(0, start - at) : stop - at]
        at += len(piece)
        if at >= stop:
            return
    raise BundleError("lying_size", "it is shorter than it says", entry.name)


LOCAL: Final = struct.Struct("<4s5H3L2H")
CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
END: Final = struct.Struct("<4s4H2LH")
END_64: Final = struct.Struct("<4sQ2H2L4Q")
LOCATOR_64: Final = struct.Struct("<4sLQL")
MAX_16: Final = 0xFFFF
MAX_32: Final = 0xFFFF_FFFF
"""Means that the value is in a 64-bit field."""
FOLDER, FILE, PROGRAM = 0o040755, 0o100644, 0o100755

_UNIX: Final = 3 << 8
_BASE_VERSION, _ZIP64_VERSION = 20, 45
"""Version needed to extract: for folders and Deflate; for 64-bit fields."""
_UTF_8: Final = 1 << 11
_DOS_FOLDER: Final = 0x10


class Headers:
    """The two headers of a file or folder.

    Args:
        path: with a slash at the end for a folder.
        modified: DOS date and time, the date in the upper 16 bits.
        mode: one of the three above; only the central header holds it.
        offset: where its local header begins.
    """

    def __init__(self, path: str, modified: int, mode: int, offset: int) -> None:
        self._name, self.mode, self._offset = path.encode(), mode, offset
        self._flags = 0 if path.isascii() else _UTF_8
        self._date, self._time = modified >> 16, modified & MAX_16
        self.method = STORED
        self.zip64 = False
        """Whether its local header has 64-bit sizes."""
        self.crc = self.size = self.packed = 0

    def local(self) -> bytearray:
        sizes = (MAX_32, MAX_32) if self.zip64 else (self.packed, self.size)
        extra = struct.pack("<2H2Q", 1, 16, self.size, self.packed) if self.zip64 else b""
        version = _ZIP64_VERSION if self.zip64 else _BASE_VERSION
        head = LOCAL.pack(b"PK\3\4", version, *self._common(), *sizes, len(self._name), len(extra))
        return bytearray(head + self._name + extra)

    def central(self) -> bytes:
        sizes, offset, values = (self.packed, self.size), self._offset, b""
        if max(sizes) >= MAX_32:
            values = struct.pack("<2Q", self.size, self.packed)
            sizes = (MAX_32, MAX_32)
        if offset >= MAX_32:
            values += struct.pack("<Q", offset)
            offset = MAX_32
        extra = struct.pack("<2H", 1, len(values)) + values if values else b""
        version = _ZIP64_VERSION if self.zip64 or extra else _BASE_VERSION
        attributes = self.mode << 16 | (_DOS_FOLDER if self.mode == FOLDER else 0)
        lengths = (len(self._name), len(extra), 0)
        head = CENTRAL.pack(
            b"PK\1\2", _UNIX | version, version, *self._common(), *sizes, *lengths, 0, 0,
            attributes, offset,
        )  # fmt: skip
        return head + self._name + extra

    def _common(self) -> tuple[int, ...]:
        return self._flags, self.method, self._time, self._date, self.crc


def end_records(count: int, start: int, length: int) -> bytes:
    """What follows the central directory: ``count`` entries, ``length`` bytes from ``start``."""
    data = b""
    if count >= MAX_16 or start >= MAX_32 or length >= MAX_32:
        versions = (_UNIX | _ZIP64_VERSION, _ZIP64_VERSION)
        data = END_64.pack(
            b"PK\6\6", END_64.size - 12, *versions, 0, 0, count, count, length, start
        )
        data += LOCATOR_64.pack(b"PK\6\7", 0, start + length, 1)
    number = min(count, MAX_16)
    return data + END.pack(
        b"PK\5\6", 0, 0, number, number, min(length, MAX_32), min(start, MAX_32), 0
    )
