"""Many things at the same time, whose outcomes are taken in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def in_order(
    work: Iterable[Callable[[], Awaitable[T]]], at_once: int
) -> AsyncGenerator[T, None]:
    """Call each, ``at_once`` at the same time, and give what they return in their order.

    What fails is raised in its turn; then, or when nobody takes the rest, what still runs is
    cancelled.
    """
    running: deque[asyncio.Future[T]] = deque()
    try:
        for start in work:
            running.append(asyncio.ensure_future(start()))
            if len(running) >= at_once:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def buffered(items: AsyncGenerator[T, None], ahead: int) -> AsyncGenerator[T, None]:
    """The same items, of which ``ahead`` are taken before they are asked for."""
    room, ready = asyncio.Semaphore(ahead), asyncio.Queue[T | None]()

    async def fill() -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    await room.acquire()
                    ready.put_nowait(item)
        finally:
            ready.put_nowait(None)

    filling = asyncio.create_task(fill())
    try:
        while (item := await ready.get()) is not None:
            yield item
            room.release()
        await filling
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
