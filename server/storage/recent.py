"""Contents of small files that were stored or read lately: a stored file never changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

from server.domain.jobs import FileKind

_MOST_OF_ONE: Final = 64 << 10
_MOST: Final = 4 << 20
_File = tuple[FileKind, str]


class RecentFiles:
    """Their bytes, those of the files that were asked for longest ago forgotten first."""

    def __init__(self) -> None:
        self._contents: OrderedDict[_File, bytes] = OrderedDict()
        self._size = 0

    def add(self, file: _File, content: bytes) -> None:
        """Keep it, if it is small."""
        if len(content) > _MOST_OF_ONE:
            return
        self.forget(file)
        self._contents[file] = content
        self._size += len(content)
        while self._size > _MOST:
            self.forget(next(iter(self._contents)))

    def get(self, file: _File) -> bytes | None:
        content = self._contents.get(file)
        if content is not None:
            self._contents.move_to_end(file)
        return content

    def forget(self, file: _File) -> None:
        """It is removed."""
        self._size -= len(self._contents.pop(file, b""))


class BytesStream:
    """``ports.FileStream`` of what is in memory.

    Attributes:
        size: bytes of the whole file.
    """

    def __init__(self, content: bytes, start: int = 0, end: int | None = None) -> None:
        self.size, self._part = len(content), content[start:end]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._part:
            yield self._part
