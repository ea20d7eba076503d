"""A strict reader of tar files, in one pass and with flat memory.

Accepts what common programs write: V7, ustar, GNU long names, pax paths and sizes. The standard
library's ``tarfile`` loads an extended header of any size, ignores what follows the end of the
archive or stands in its place, and would need a check for every kind of member.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shared.files.names import BundleError

BLOCK: Final = 512
_MAX_PAX: Final = 1 << 20
"""Bytes of one extended header: macOS puts extended attributes there."""
_MAX_LONG_NAME: Final = 8192
_MAX_PADDING: Final = 4 << 20
"""Zero bytes behind the end: archives are padded to their blocking factor."""
_OCTAL: Final = re.compile(rb" *([0-7]*)[ \0]*")
_UTF_8: Final = b"ISO-IR 10646 2000 UTF-8"
_RECORD: Final = re.compile(rb"([1-9][0-9]{0,9}) ")
_REFUSED_KINDS: Final = {
    b"1": ("link", "it is a hard link"),
    b"2": ("link", "it is a symbolic link"),
    b"3": ("special_file", "it is a character device"),
    b"4": ("special_file", "it is a block device"),
    b"6": ("special_file", "it is a FIFO"),
    b"S": ("sparse_file", "it is a sparse file"),
    b"M": ("split_archive", "it continues from another volume"),
}


@dataclass(frozen=True, slots=True)
class TarEntry:
    """A file or folder; its content follows in the stream."""

    name: str
    """As written."""
    is_folder: bool
    executable: bool
    size: int


@dataclass(slots=True)
class _Extended:
    """What extended headers say about the member that follows."""

    name: bytes | None = None
    size: int | None = None
    headers: int = 0


@dataclass(frozen=True, slots=True)
class _Header:
    name: bytes
    mode: int
    size: int
    kind: bytes


class TarReader:
    """Iterates over the members; ``content`` belongs to the member that was returned last.

    Args:
        pieces: the archive's bytes, uncompressed.
        max_entries: more headers of any kind are refused.

    Raises:
        BundleError: from the iteration and from ``content``.
    """

    def __init__(self, pieces: Iterator[bytes], max_entries: int) -> None:
        self._pieces, self._max_entries = pieces, max_entries
        self._rest = memoryview(b"")
        self._left = 0
        self._padding = 0

    def __iter__(self) -> Iterator[TarEntry]:
        extended = _Extended()
        for _ in range(self._max_entries):
            block = self._exactly(BLOCK)
            if not any(block):
                if extended.headers:
                    raise BundleError("damaged", "the archive ends behind an extended header")
                self._finish()
                return
            header = parse_header(block)
            self._begin(header.size if extended.size is None else extended.size)
            if header.kind in b"xgLK":
                self._extend(header, extended)
                continue
            yield _entry(header, extended, self._left)
            for _ in self.content():
                pass
            self._exactly(self._padding)
            extended = _Extended()
        raise BundleError(
            "too_many_files", f"the archive lists more than {self._max_entries} entries"
        )

    def content(self) -> Iterator[memoryview]:
        """What is left of the current member's content."""
        while self._left:
            piece = self._take(self._left)
            self._left -= len(piece)
            yield piece

    def _begin(self, size: int) -> None:
        self._left = size
        self._padding = -size % BLOCK

    def _take(self, limit: int) -> memoryview:
        """Up to ``limit`` bytes, at least one."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
            if not self._rest:
                raise BundleError("truncated", "the archive is cut short")
        piece, self._rest = self._rest[:limit], self._rest[limit:]
        return piece

    def _exactly(self, length: int) -> bytes:
        """Exactly ``length`` bytes, a few at most."""
        parts = []
        while length:
            part = self._take(length)
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _finish(self) -> None:
        """After the first of the two zero blocks that end an archive: the second, then zeros."""
        if any(self._exactly(BLOCK)):
            raise BundleError("damaged", "the archive's end mark is damaged")
        padding = 0
        while rest := bytes(self._rest) or next(self._pieces, b""):
            self._rest = memoryview(b"")
            padding += len(rest)
            if padding > _MAX_PADDING or rest.count(0) != len(rest):
                raise BundleError("trailing_data", "something follows the end of the archive")

    def _extend(self, header: _Header, extended: _Extended) -> None:
        extended.headers += 1
        is_pax = header.kind in b"xg"
        # Read into memory, so bounded before.
        if self._left > (_MAX_PAX if is_pax else _MAX_LONG_NAME):
            raise BundleError("huge_header", f"an extended header has {self._left} bytes")
        if extended.headers > 3 or (extended.size is not None):
            raise BundleError("damaged", "the archive has extended headers in a row")
        data = self._exactly(self._left + self._padding)[: self._left]
        self._left = 0
        if header.kind == b"L":
            _set_name(extended, data.rstrip(b"\0"))
        elif is_pax:
            _read_pax(data, extended, for_all=header.kind == b"g")


def _set_name(extended: _Extended, name: bytes) -> None:
    if extended.name is not None:
        raise BundleError("two_names", "extended headers name it twice", _shown(name))
    extended.name = name


def _read_pax(data: bytes, extended: _Extended, *, for_all: bool) -> None:
    records = _pax_records(data)
    for key in (b"path", b"GNU.sparse.name"):
        if len(records.get(key, b"")) > _MAX_LONG_NAME:
            raise BundleError(
                "huge_header",
                f"an extended header has a {key.decode()} of over {_MAX_LONG_NAME} bytes",
            )
    name = records.get(b"path")
    part = None if name is None else _shown(name)
    if any(key.startswith((b"GNU.sparse.", b"SCHILY.realsize")) for key in records):
        real = records.get(b"GNU.sparse.name", name)
        part = None if real is None else _shown(real)
        raise BundleError("sparse_file", "it is a sparse file", part)
    if records.get(b"hdrcharset", _UTF_8) != _UTF_8:
        raise BundleError("bad_utf8", "its name is not valid UTF-8", part)
    for key in (b"path", b"size", b"linkpath") if for_all else ():
        if key in records:
            raise BundleError("damaged", f"a global header sets the {key.decode()} of every file")
    if name is not None:
        _set_name(extended, name)
    if (size := records.get(b"size")) is not None:
        if not re.fullmatch(rb"[0-9]{1,18}", size):
            raise BundleError("damaged", "an extended header is damaged", part)
        extended.size = int(size)


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        match = _RECORD.match(data, at)
        end = at + int(match[1]) if match else 0
        if match is None or end > len(data) or end <= match.end() or data[end - 1] != 0x0A:
            raise BundleError("damaged", "an extended header is damaged")
        key, equals, value = data[match.end() : end - 1].partition(b"=")
        if not equals or key in records:
            raise BundleError("damaged", "an extended header is damaged")
        records[key] = value
        at = end
    return records


def parse_header(block: bytes) -> _Header:
    """Read one header block.

    Raises:
        BundleError: it is none.
    """
    declared = _number(block[148:156])
    if sum(block) - sum(block[148:156]) + 8 * 0x20 != declared:
        raise BundleError("damaged", "a header of the archive is damaged: its checksum is wrong")
    name = block[:100].split(b"\0", 1)[0]
    # GNU's magic is "ustar  ": its headers hold times where POSIX has the prefix.
    if block[257:263] == b"ustar\0" and (prefix := block[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    return _Header(name, _number(block[100:108]), _number(block[124:136]), block[156:157])


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # GNU: binary, where octal digits do not suffice
        return int.from_bytes(field[1:], "big")
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise BundleError("damaged", "a header of the archive is damaged")
    return int(match[1] or b"0", 8)


def _entry(header: _Header, extended: _Extended, size: int) -> TarEntry:
    raw = header.name if extended.name is None else extended.name
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        message = "its name is not valid UTF-8"
        raise BundleError("bad_utf8", message, _shown(raw)) from None
    if header.kind in _REFUSED_KINDS:
        code, message = _REFUSED_KINDS[header.kind]
        raise BundleError(code, message, name)
    if header.kind not in {b"0", b"\0", b"7", b"5"}:
        kind = _shown(header.kind)
        raise BundleError("special_file", f"it is of a kind ({kind}) that is not read", name)
    # In the oldest format a folder is a file whose name ends in a slash.
    is_folder = header.kind == b"5" or name.endswith("/")
    if is_folder and size:
        raise BundleError("lying_header", "it is a folder, but has content", name)
    return TarEntry(name, is_folder, bool(header.mode & 0o111), size)


def _shown(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
