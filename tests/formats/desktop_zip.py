"""What the ZIP readers of Windows and macOS ask of a file, checked on its bytes.

Written from the format's description (APPNOTE), not with the writer under test. Why each rule is
there: docs/adr/0012-zip-writer.md.
"""

import os
import stat
import struct
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FULL: Final = 0xFFFF_FFFF
_ODD: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@dataclass(frozen=True)
class Header:
    name: str
    needed: int
    method: int
    size: int
    packed: int
    offset: int
    mode: int
    wide: int
    """Bytes of 64-bit values."""


def check(path: Path) -> list[Header]:
    """Read the structures of a ZIP and hold them to the rules; what is in it."""
    with path.open("rb") as file:
        fd = file.fileno()
        size = path.stat().st_size
        count, start, length, wide_end = _end(fd, size)
        found = _directory(os.pread(fd, length, start), count)
        needs = count >= 0xFFFF or start >= _FULL or length >= _FULL
        assert wide_end == needs, "64-bit end records stand where they are needed, only there"
        at = 0
        for header in found:
            assert header.offset == at, f"{header.name}: a gap or an overlap before it"
            at = _local(fd, header)
        assert at == start, "a gap before the table of contents"
    _check_names([header.name for header in found])
    return found


def _end(fd: int, size: int) -> tuple[int, int, int, bool]:
    magic, disk, first, here, count, length, start, comment = struct.unpack(
        "<4s4H2LH", os.pread(fd, 22, size - 22)
    )
    assert (magic, disk, first, comment) == (b"PK\5\6", 0, 0, 0)
    assert here == count
    end, wide = size - 22, False
    if os.pread(fd, 4, size - 42) == b"PK\6\7":
        wide = True
        _, disk, record, disks = struct.unpack("<4sLQL", os.pread(fd, 20, size - 42))
        assert (disk, disks, record) == (0, 1, size - 42 - 56)
        values = struct.unpack("<4sQ2H2L4Q", os.pread(fd, 56, record))
        assert values[:6] == (b"PK\6\6", 44, 3 << 8 | 45, 45, 0, 0)
        for narrow, value, full in zip(
            (here, count, length, start), values[6:], (0xFFFF, 0xFFFF, _FULL, _FULL), strict=True
        ):
            assert narrow == min(value, full)
        _, count, length, start = values[6:]
        end = record
    assert start + length == end
    return count, start, length, wide


def _directory(data: bytes, count: int) -> list[Header]:
    found, at = [], 0
    while at < len(data):
        (
            magic, made, needed, flags, method, time, date, _, packed, size,
            name_length, extra_length, comment, disk, internal, attributes, offset,
        ) = struct.unpack_from("<4s6H3L5H2L", data, at)  # fmt: skip
        at += 46 + name_length + extra_length
        raw = data[at - extra_length - name_length : at - extra_length]
        extra = data[at - extra_length : at]
        assert (magic, comment, disk, internal) == (b"PK\1\2", 0, 0, 0)
        name = raw.decode()
        assert made == 3 << 8 | needed, f"{name}: attributes are those of UNIX"
        assert flags == (0 if raw.isascii() else 1 << 11), f"{name}: says UTF-8 where it matters"
        _check_time(time, date)
        narrow = (size, packed, offset)
        values = _wide(extra)
        wide = len(values) * 8
        given = iter(values)
        size, packed, offset = (next(given) if one == _FULL else one for one in narrow)
        assert next(given, None) is None, f"{name}: 64-bit values that nothing asks for"
        assert (size >= _FULL or packed >= _FULL) == (narrow[:2] == (_FULL, _FULL))
        assert (offset >= _FULL) == (narrow[2] == _FULL)
        assert needed in {20, 45}
        assert needed == 45 or not wide
        mode = attributes >> 16
        if name.endswith("/"):
            assert (mode, attributes & 0xFFFF) == (stat.S_IFDIR | 0o755, 0x10), name
            assert (method, size, packed) == (0, 0, 0), name
        else:
            assert mode in {stat.S_IFREG | 0o644, stat.S_IFREG | 0o755}, name
            assert attributes & 0xFFFF == 0, name
            assert method == (8 if size else 0) or (method == 0 and packed == size), name
        found.append(Header(name, needed, method, size, packed, offset, mode, wide))
    assert len(found) == count
    return found


def _local(fd: int, header: Header) -> int:
    """Compare the two headers of a file; where the next one must begin."""
    magic, needed, flags, method, time, date, _, packed, size, name_length, extra_length = (
        struct.unpack("<4s5H3L2H", os.pread(fd, 30, header.offset))
    )
    rest = os.pread(fd, name_length + extra_length, header.offset + 30)
    assert magic == b"PK\3\4"
    assert rest[:name_length].decode() == header.name
    assert flags & ~(1 << 11) == 0, f"{header.name}: no data descriptor, nothing exotic"
    assert method == header.method
    _check_time(time, date)
    values = _wide(rest[name_length:])
    if values:
        assert (size, packed) == (_FULL, _FULL), header.name
        size, packed = values
        assert needed == header.needed == 45
    else:
        assert needed == 20
    assert (size, packed) == (header.size, header.packed), f"{header.name}: its sizes differ"
    return header.offset + 30 + len(rest) + header.packed


def _wide(extra: bytes) -> list[int]:
    """The values of the ZIP64 field; no other may be there."""
    if not extra:
        return []
    kind, length = struct.unpack_from("<2H", extra)
    assert (kind, length) == (1, len(extra) - 4)
    return list(struct.unpack_from(f"<{length // 8}Q", extra, 4))


def _check_time(time: int, date: int) -> None:
    assert 1 <= date >> 5 & 15 <= 12
    assert 1 <= date & 31 <= 31
    assert time >> 11 < 24
    assert time >> 5 & 63 < 60
    assert time & 31 < 30


def _check_names(names: list[str]) -> None:
    """They can lie side by side, and hide nothing; not every system can store each of them."""
    assert len(set(names)) == len(names)
    files = {tuple(name.split("/")) for name in names if not name.endswith("/")}
    for name in names:
        assert unicodedata.normalize("NFC", name) == name
        assert len(name.removesuffix("/").encode()) <= 1024, name
        parts = tuple(name.removesuffix("/").split("/"))
        for part in parts:
            assert part not in {"", ".", ".."}, name
            assert len(part.encode()) <= 255, name
            assert not {"\\", "\0"} & set(part), name
            assert not any(unicodedata.category(c) in _ODD for c in part), name
        for depth in range(1, len(parts) + 1):
            assert depth == len(parts) or parts[:depth] not in files, f"{name}: below a file"
