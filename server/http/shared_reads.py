"""One read for many listeners that ask for the same at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages that can be sent now."""

    data: bytes
    reached: int
    """Everything up to this number was looked at."""
    more: bool = False
    """There is more already."""
    last: bool = False
    """There will be no more."""


class SharedReads(Generic[T]):
    """Listeners that a change has woken wait for one read together.

    A read is shared only until it has ended, and only by those for whom nothing was committed
    since it began: nobody misses what woke them.
    """

    def __init__(self) -> None:
        self._reads: dict[Hashable, tuple[int, asyncio.Task[T]]] = {}

    async def read(self, version: int, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What ``read`` gives, for everybody with this key.

        Args:
            version: of what is read: another number after each commit.
            key: all that the result depends on, and who may see it.

        Raises:
            Whatever ``read`` raises.
        """
        known = self._reads.get(key)
        if known is not None and known[0] == version:
            task = known[1]
        else:
            task = asyncio.create_task(_awaited(read))
            self._reads[key] = version, task
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)  # one listener that goes away does not end it for others

    def _forget(self, key: Hashable, done: asyncio.Task[T]) -> None:
        known = self._reads.get(key)
        if known is not None and known[1] is done:
            del self._reads[key]
        if not done.cancelled():
            done.exception()  # it was raised for those who still wait


async def _awaited(read: Callable[[], Awaitable[T]]) -> T:
    return await read()
