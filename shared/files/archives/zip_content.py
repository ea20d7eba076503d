"""Reads the content of one ZIP entry: exactly the declared bytes, with flat memory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Final

from isal import isal_zlib

from shared.files.archives.zip_directory import STORED, ZipEntry
from shared.files.errors import BundleError

_CHUNK: Final = 1 << 20
_PACKED_CHUNK: Final = 1 << 16


def read_content(fd: int, entry: ZipEntry, chunk: int = _CHUNK) -> Iterator[bytes]:
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
    fd: int, at: int, length: int, chunk: int, part: str | None = None
) -> Iterator[bytes]:
    """``length`` bytes of a file from ``at`` on, in pieces.

    Raises:
        BundleError: the file ends before.
    """
    end = at + length
    while at < end:
        data = os.pread(fd, min(chunk, end - at), at)
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
