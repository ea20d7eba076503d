"""The headers of a ZIP, as they are written."""

from __future__ import annotations

import struct
from typing import Final

STORED: Final = 0
DEFLATED: Final = 8
EARLIEST: Final = 1 << 21 | 1 << 16
"""DOS date and time of 1980-01-01: that of every file of a bundle, and where none is known."""
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
