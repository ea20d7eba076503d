"""Where a download goes: a file that appears when it is whole, or a file object."""

from __future__ import annotations

import io
import os
import secrets
from pathlib import Path
from typing import BinaryIO, Final, Protocol

STDOUT: Final = Path("-")
"""The path of a file object, which may have none."""


class Sink(Protocol):
    """Takes the bytes of a download. Called from a thread, except for :meth:`open`."""

    path: Path

    def open(self) -> None: ...

    def write(self, piece: bytes) -> None: ...

    def restart(self) -> None:
        """Forget what was written.

        Raises:
            OSError: that cannot be done.
        """
        ...

    def finish(self) -> None:
        """All is written."""
        ...

    def abandon(self) -> None:
        """Leave nothing behind, as far as that is possible."""
        ...


class FileSink:
    """A file under its name only when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Beside the target, so that the final rename stays on one file system.
        self._partial = path.parent / f".{path.name[:200]}.{secrets.token_hex(4)}.part"
        self._file: BinaryIO | None = None

    def open(self) -> None:
        self._file = self._partial.open("xb")

    def write(self, piece: bytes) -> None:
        self._opened().write(piece)

    def restart(self) -> None:
        self._opened().seek(0)
        self._opened().truncate(0)

    def finish(self) -> None:
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._partial.replace(self.path)

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def _opened(self) -> BinaryIO:
        assert self._file is not None
        return self._file


class ObjectSink:
    """A file that is open for writing bytes; it stays open."""

    path = STDOUT

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start: int | None = None

    def open(self) -> None:
        if self._file.seekable():
            self._start = self._file.tell()

    def write(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:  # a raw file may take less
            left = left[self._file.write(left) :]

    def restart(self) -> None:
        if self._start is None:
            raise io.UnsupportedOperation("what was written to a pipe cannot be taken back")
        self._file.seek(self._start)
        self._file.truncate()

    def finish(self) -> None:
        self._file.flush()

    def abandon(self) -> None:
        if self._start is not None and not self._file.closed:
            self.restart()
