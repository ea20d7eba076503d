"""A new file that stays in memory as long as it is small."""

from __future__ import annotations

from pathlib import Path

from shared.files.durable import remove_quietly
from shared.files.staged_file import ReserveSpace, StagedFile


class KeptFile:
    """As a :class:`StagedFile`, which it becomes with the first byte too many. Until then no method
    blocks, and nothing is on the disk.

    Args:
        path: must not exist.
        most: bytes that are kept in memory; 0: none, the file is made at once.

    Raises:
        OSError: here and from every method but :meth:`remove`.
    """

    def __init__(self, path: Path, reserve: ReserveSpace | None = None, most: int = 0) -> None:
        self._path, self._reserve, self._most = path, reserve, most
        self._kept = bytearray()
        self._staged = None if most else StagedFile(path, reserve)

    @property
    def size(self) -> int:
        """Bytes so far."""
        return len(self._kept) if self._staged is None else self._staged.size

    @property
    def content(self) -> bytes | None:
        """All of it; None: it is on the disk."""
        return bytes(self._kept) if self._staged is None else None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append."""
        if self._staged is None:
            if len(self._kept) + len(data) <= self._most:
                self._kept += data
                return
            self._staged = StagedFile(self._path, self._reserve)
            self._staged.write(self._kept)
            self._kept.clear()
        self._staged.write(data)

    def patch(self, at: int, data: bytes | bytearray) -> None:
        """Overwrite bytes that were appended before."""
        if self._staged is None:
            self._kept[at : at + len(data)] = data
        else:
            self._staged.patch(at, data)

    def finish(self) -> None:
        """Put all of it on the disk, unless it is in memory, and close it."""
        if self._staged is not None:
            self._staged.sync()
            self._staged.close()

    def remove(self) -> None:
        """Close it, and remove what is on the disk. May be repeated."""
        if self._staged is not None:
            self._staged.close()
            remove_quietly(self._path)
