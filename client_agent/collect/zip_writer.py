"""Writes ZIP files that every desktop opens.

Sizes are written before each file, never after it: the writer goes back for that. macOS's Archive
Utility relies on local headers, and cannot open files whose 64-bit sizes come later. 64-bit fields
are used only for values that need them, and UTF-8 is declared only for names that are not ASCII,
because some old programs know neither. See docs/adr/0012-zip-writer.md.

Its methods block, and need no more memory for larger results.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import IO, Final

from isal import isal_zlib

from shared.files.archives.zip_headers import (
    DEFLATED,
    FILE,
    FOLDER,
    MAX_32,
    PROGRAM,
    Headers,
    end_records,
)
from shared.files.durable import WRITEBACK_BYTES, start_writeback, write_all

_LEVEL: Final = 1
"""Level of isal, 0–3. Levels 2 and 3 take up to ten times as long and save hardly more."""
_CHUNK: Final = 1 << 18
_SPOOL: Final = 1 << 20
"""Bytes of the central directory that are kept in memory."""


class ZipWriter:
    """Writes one ZIP. As a context manager, it deletes the file unless ``finish`` was called.
    All of its methods raise OSError, for example if the disk is full.

    Args:
        path: must not exist.
        on_writeback: called each time some megabytes were written. It may raise to cancel.
    """

    def __init__(self, path: Path, on_writeback: Callable[[], None] = lambda: None) -> None:
        self._path, self._on_writeback = path, on_writeback
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._pending: list[bytes | bytearray] = []
        self._written = self._position = self._writeback_from = 0
        self._count = 0
        self._directory: IO[bytes] = tempfile.SpooledTemporaryFile(_SPOOL, dir=str(path.parent))  # noqa: SIM115
        self._finished = False

    def __enter__(self) -> ZipWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._directory.close()
        os.close(self._fd)
        if kind is not None or not self._finished:
            self._path.unlink(missing_ok=True)

    def add_folder(self, path: str, modified: datetime) -> None:
        """Add a folder. Only empty folders need an entry."""
        entry = Headers(f"{path}/", _dos_time(modified), FOLDER, self._position)
        self._write(entry.local())
        self._list_entry(entry)

    def add_file(
        self,
        path: str,
        modified: datetime,
        pieces: Iterable[bytes],
        max_size: int,
        *,
        executable: bool = False,
    ) -> None:
        """Add a file.

        Args:
            path: safe, relative, not in the ZIP yet.
            modified: in UTC, 1980–2107; stored with a precision of two seconds.
            pieces: the content.
            max_size: the content may have fewer bytes, but not more.
        """
        mode = PROGRAM if executable else FILE
        entry = Headers(path, _dos_time(modified), mode, self._position)
        # Deflate may add 5 bytes to 65,535
        entry.zip64 = max_size + (max_size >> 10) + 4096 >= MAX_32
        header = entry.local()
        start = self._position
        self._write(header)
        engine = isal_zlib.compressobj(level=_LEVEL, wbits=-15)
        for piece in pieces:
            entry.crc = isal_zlib.crc32(piece, entry.crc)
            entry.size += len(piece)
            entry.packed += self._write(engine.compress(piece))
        if entry.size > max_size:
            raise ValueError(f"{path}: {entry.size} bytes, {max_size} were announced")
        if entry.size:
            entry.method = DEFLATED
            entry.packed += self._write(engine.flush())
        header[:] = entry.local()
        if self._written > start:
            os.pwrite(self._fd, header, start)
        self._list_entry(entry)

    def finish(self) -> int:
        """Write the central directory; the file's size in bytes. It is not fsynced."""
        start = self._position
        self._directory.seek(0)
        while data := self._directory.read(_CHUNK):
            self._write(data)
        length, count = self._position - start, self._count
        self._write(end_records(count, start, length))
        self._flush()
        self._finished = True
        return self._position

    def sha256(self) -> str:
        """Of the finished file, hex. It is read again, because earlier bytes were overwritten. Most
        of it is still in the page cache."""
        digest, at = hashlib.sha256(), 0
        while data := os.pread(self._fd, _CHUNK, at):
            digest.update(data)
            at += len(data)
        return digest.hexdigest()

    def _list_entry(self, entry: Headers) -> None:
        self._directory.write(entry.central())
        self._count += 1

    def _write(self, data: bytes | bytearray) -> int:
        self._pending.append(data)
        self._position += len(data)
        if self._position - self._written >= _CHUNK:
            self._flush()
        return len(data)

    def _flush(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        write_all(self._fd, data)
        self._written += len(data)
        if self._written >= self._writeback_from + WRITEBACK_BYTES:
            start_writeback(self._fd, self._writeback_from, self._written - self._writeback_from)
            self._writeback_from = self._written
            self._on_writeback()


def _dos_time(when: datetime) -> int:
    date = when.year - 1980 << 9 | when.month << 5 | when.day
    return date << 16 | when.hour << 11 | when.minute << 5 | when.second >> 1
