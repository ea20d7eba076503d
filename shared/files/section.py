"""A part of a file, read as if it were a file of its own."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def open_section(path: Path, start: int, size: int) -> io.BufferedReader:
    """Open ``size`` bytes of the file from ``start``; fewer where the file ends before. Blocking.
    Raises OSError.
    """
    return io.BufferedReader(_Section(path, start, size))


class _Section(io.RawIOBase):
    def __init__(self, path: Path, start: int, size: int) -> None:
        super().__init__()
        self._file = path.open("rb", buffering=0)
        there = os.fstat(self._file.fileno()).st_size
        self._start, self._size, self._at = start, max(0, min(size, there - start)), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        before = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if before + offset < 0:
            raise ValueError(f"{offset} is before the beginning of the section")
        self._at = before + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        data = os.pread(self._file.fileno(), count, self._start + self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
