"""A storage in memory, as an object store would do it: a stream in, ranges out, no paths."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from server.domain.jobs import FileKind
from server.ports import FileStream, Scratch
from server.storage.base import NAME, BaseStorage
from shared.clock import Micros

_PAGE = 3


@dataclass
class Contents:
    """What outlives a run of the server.

    Attributes:
        most: bytes that there is space for.
    """

    files: dict[tuple[FileKind, str], bytes] = field(default_factory=dict)
    most: int = 1 << 40


@dataclass
class _Stream:
    size: int
    part: bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.part), 1000):
            yield self.part[at : at + 1000]


class MemoryStorage(BaseStorage):
    """``ports.Storage`` in memory."""

    def __init__(
        self, contents: Contents, scratch: Scratch, owner: str, token: Callable[[], str]
    ) -> None:
        super().__init__(owner, token)
        self._contents, self._scratch = contents, scratch

    async def _store(
        self, kind: FileKind, name: str, content: AsyncIterable[bytes] | bytes
    ) -> None:
        data = content
        if not isinstance(data, bytes):
            data = b"".join([chunk async for chunk in data])
        if sum(map(len, self._contents.files.values())) + len(data) > self._contents.most:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._contents.files[kind, name] = data

    def _get(self, kind: FileKind, name: str) -> bytes:
        try:
            return self._contents.files[kind, name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file", name) from None

    @asynccontextmanager
    async def open(
        self, kind: FileKind, name: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[FileStream]:
        data = self._get(kind, name)
        yield _Stream(len(data), data[start:end])

    @asynccontextmanager
    async def local_copy(self, kind: FileKind, name: str) -> AsyncIterator[Path]:
        with self._scratch.file() as copy:
            copy.path.write_bytes(self._get(kind, name))
            yield copy.path

    def in_memory(self, kind: FileKind, name: str) -> bytes | None:
        return None

    async def delete(self, files: Iterable[tuple[FileKind, str]]) -> None:
        for file in files:
            self._contents.files.pop(file, None)

    async def list(self, kind: FileKind, after: str = "") -> list[str]:
        names = sorted(
            name
            for of, name in self._contents.files
            if of is kind and name > after and NAME.fullmatch(name)
        )
        return names[:_PAGE]

    async def stored_before(
        self, kind: FileKind, names: Sequence[str], at: Micros
    ) -> Sequence[str]:
        return list(names)
