"""The content of one ZIP entry, with flat memory, to its last declared byte and not one further."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from shared.files.errors import BundleError
from shared.files.zips import STORED, ZipEntry

_CHUNK: Final = 1 << 20
_PACKED_CHUNK: Final = 1 << 18


def read_content(
    fd: int, entry: ZipEntry, chunk: int = _CHUNK, count: Callable[[int], None] | None = None
) -> Iterator[bytes]:
    """The unpacked content in pieces, each at most ``chunk`` bytes.

    Args:
        count: told of each piece's length before anything is done with it; may raise to stop.

    Raises:
        BundleError: damaged, or longer or shorter than declared, or of another checksum. What was
            given out before must then be thrown away.
    """
    pieces = _stored(fd, entry, chunk) if entry.method == STORED else _inflated(fd, entry, chunk)
    crc = length = 0
    for piece in pieces:
        length += len(piece)
        if count is not None:
            count(len(piece))
        if length > entry.size:
            raise BundleError("lying_size", "it is longer than it says", entry.name)
        crc = zlib.crc32(piece, crc)
        yield piece
    if length != entry.size:
        raise BundleError("lying_size", "it is shorter than it says", entry.name)
    if crc != entry.crc:
        raise BundleError(
            "bad_checksum", "its content is damaged: the checksum is wrong", entry.name
        )


def _stored(fd: int, entry: ZipEntry, chunk: int) -> Iterator[bytes]:
    at, end = entry.offset, entry.offset + entry.packed
    while at < end:
        data = os.pread(fd, min(chunk, end - at), at)
        if not data:
            raise BundleError("truncated", "the archive is cut short", entry.name)
        at += len(data)
        yield data


def _inflated(fd: int, entry: ZipEntry, chunk: int) -> Iterator[bytes]:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    left = entry.packed
    try:
        for data in _stored(fd, entry, min(chunk, _PACKED_CHUNK)):
            left -= len(data)
            while True:
                piece = inflate.decompress(data, chunk)
                if piece:
                    yield piece
                data = inflate.unconsumed_tail
                # A full piece may mean that more waits inside, although all input is taken.
                if inflate.eof or not (data or len(piece) == chunk):
                    break
            if inflate.eof:
                break
    except zlib.error:
        raise BundleError("damaged", "its content is damaged", entry.name) from None
    if not inflate.eof:
        raise BundleError("truncated", "its content is cut short", entry.name)
    if left or inflate.unused_data:
        raise BundleError("hidden_data", "something follows its content", entry.name)
