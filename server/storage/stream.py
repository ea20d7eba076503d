"""Reading a local file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

_CHUNK: Final = 1 << 20


class LocalStream:
    """``ports.FileStream`` of a local file; made in a thread.

    Its first bytes are read at once: most files are no longer, and a second hop to a thread costs
    more than that.

    Attributes:
        size: bytes of the whole file.
    """

    def __init__(self, path: Path, start: int = 0, end: int | None = None) -> None:
        self._file = path.open("rb", buffering=0)
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self._at, self._end = start, self.size if end is None else min(end, self.size)
            self._first = self._read()
        except BaseException:
            self.close()
            raise
        if self._at >= self._end:
            self.close()

    def close(self) -> None:
        self._file.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunk, self._first = self._first, b""
        while chunk:
            yield chunk
            if self._at >= self._end:
                return
            chunk = await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        data = os.pread(self._file.fileno(), max(0, min(_CHUNK, self._end - self._at)), self._at)
        self._at += len(data)
        return data
