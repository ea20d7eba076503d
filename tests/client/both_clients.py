"""One scenario with both kinds of client: ``async for client in both(url): await client...``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

from ferryman import Client, SyncClient, SyncResult


async def both(url: str, **options: Any) -> AsyncIterator[Any]:
    """A :class:`Client`, and then a :class:`SyncClient` that is driven in threads."""
    async with Client(url, **options) as client:
        yield client
    sync = SyncClient(url, **options)
    await asyncio.to_thread(sync.__enter__)
    try:
        yield _Awaited(sync)
    finally:
        await asyncio.to_thread(sync.close)


class _Awaited:
    """A blocking object whose methods are awaited, and whose generators are asynchronous."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            if name in ("events", "all_events", "jobs", "files", "map", "follow_log", "schedules"):
                return _iterated(found(*args, **options))
            return _called(found, *args, **options)

        return call


async def _called(method: Any, *args: Any, **options: Any) -> Any:
    return _wrapped(await asyncio.to_thread(method, *args, **options))


async def _iterated(items: Generator[Any, None, None]) -> AsyncIterator[Any]:
    end = object()
    try:
        while (item := await asyncio.to_thread(next, items, end)) is not end:
            yield _wrapped(item)
    finally:
        await asyncio.to_thread(items.close)


def _wrapped(found: Any) -> Any:
    return _Awaited(found) if isinstance(found, SyncResult) else found
