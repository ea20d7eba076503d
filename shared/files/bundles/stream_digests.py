"""Digests of a sealed bundle's files, computed while the bundle is received.

So a bundle of many gigabytes need not be read back from the disk before the answer. These digests
only save work: :class:`~shared.files.bundles.reader.BundleReader` reads every file again that did
not pass here exactly as the table of contents lists it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Final

from isal import isal_zlib

from shared.files.archives.zip_headers import LOCAL, MAX_32, STORED
from shared.files.archives.zip_reader import ZipEntry

_ZIP64: Final = struct.Struct("<2H2Q")
_SIZES_FOLLOW: Final = 8
"""Flag: the sizes stand behind the content."""


class StreamDigests:
    """Reads a ZIP from its first byte on, in pieces of any length.

    Args:
        max_files: more are not remembered; memory used is in proportion to this.
    """

    def __init__(self, max_files: int) -> None:
        self._max_files = max_files
        self._files: dict[int, tuple[int, int, str]] = {}
        self._at = 0
        self._header = bytearray()
        self._wanted = LOCAL.size
        self._next: Callable[[bytes], None] = self._local
        self._header_at = self._start = self._left = self._size = self._crc = 0
        self._sha256 = hashlib.sha256()
        self._over = False

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes. Does nothing more after the first entry that is no stored file."""
        view = memoryview(data)
        while view and not self._over:
            if self._left:
                piece = view[: self._left]
                self._sha256.update(piece)
                self._crc = isal_zlib.crc32(piece, self._crc)
                self._left -= len(piece)
            else:
                piece = view[: self._wanted - len(self._header)]
                self._header += piece
            self._at += len(piece)
            view = view[len(piece) :]
            if self._left:
                continue
            if self._start:
                self._end_file()
            elif len(self._header) == self._wanted:
                header, self._header = bytes(self._header), bytearray()
                self._next(header)

    def sha256(self, entry: ZipEntry) -> str | None:
        """Hex digest of a listed file, if its bytes were fed exactly as listed; None: read it."""
        size, crc, digest = self._files.get(entry.at, (-1, 0, ""))
        known = entry.method == STORED and (size, crc) == (entry.size, entry.crc)
        return digest if known else None

    def _local(self, header: bytes) -> None:
        self._header_at = self._at - LOCAL.size
        magic, _, flags, method, _, _, _, packed, size, name, extra = LOCAL.unpack(header)
        if magic != b"PK\3\4" or flags & _SIZES_FOLLOW or method != STORED:
            self._over = True
            return
        self._size = size

        def rest(data: bytes) -> None:
            extra_field = data[name:]
            if MAX_32 in (packed, size) and len(extra_field) >= _ZIP64.size:
                kind, _, self._size, _ = _ZIP64.unpack_from(extra_field)
                self._over = kind != 1
            self._begin_file()

        self._next, self._wanted = rest, name + extra
        if not self._wanted:
            rest(b"")

    def _begin_file(self) -> None:
        self._start, self._left, self._crc = self._at, self._size, 0
        self._sha256 = hashlib.sha256()
        self._over = self._over or len(self._files) >= self._max_files
        if not self._left:
            self._end_file()

    def _end_file(self) -> None:
        self._files[self._header_at] = (self._size, self._crc, self._sha256.hexdigest())
        self._start = 0
        self._next, self._wanted = self._local, LOCAL.size
