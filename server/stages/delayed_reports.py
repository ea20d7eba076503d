"""Reports that wait a moment for the next one, which may make them needless.

An agent says soon after each other that it has an attempt, that this runs, and often that it has
ended. The moves of all that it has said meanwhile are one transaction, and those of several jobs
share a commit. What has ended waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from shared.clock import Clock

Key = TypeVar("Key", bound=Hashable)
Whose = TypeVar("Whose")


class DelayedReports(Generic[Key, Whose]):
    """Calls ``start`` with the keys that wait, and whose each is, all together.

    Args:
        seconds: so long they wait at most; 0: nothing is to be added.
    """

    def __init__(self, seconds: float, clock: Clock, start: Callable[[Key, Whose], None]) -> None:
        self.seconds = seconds
        self._clock, self._start = clock, start
        self._keys: dict[Key, Whose] = {}
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def add(self, key: Key, whose: Whose) -> None:
        """Let it wait, unless it does; ``whose`` is as it was said last."""
        self._keys[key] = whose
        if self._task is None:
            self._task = asyncio.create_task(self._wait())

    def drop(self, key: Key) -> None:
        """It waits no more."""
        self._keys.pop(key, None)

    async def _wait(self) -> None:
        await self._clock.sleep(self.seconds)
        self._task = None
        keys, self._keys = self._keys, {}
        for key, whose in keys.items():
            self._start(key, whose)

    async def stop(self) -> None:
        """Forget all of them."""
        self._keys.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
