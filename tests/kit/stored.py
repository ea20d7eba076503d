"""Content to store, and content that was stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

from server.domain.jobs import FileKind
from server.ports import Storage


async def chunks(*content: bytes) -> AsyncIterator[bytes]:
    for chunk in content:
        yield chunk


async def read(
    storage: Storage, kind: FileKind, name: str, start: int = 0, end: int | None = None
) -> bytes:
    async with storage.open(kind, name, start, end) as stream:
        return b"".join([chunk async for chunk in stream])
