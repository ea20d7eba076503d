"""Starts what runs all the time, and stops it in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import structlog

from server.loops.runner import Loop, sweep_failures
from server.ports import LoopState

log = structlog.get_logger()


class Supervisor:
    """Runs loops and followers until :meth:`stop`.

    Args:
        followers: called with the stop event; cancelled at the end, as they may hang on a socket.
        stages: their ``stop``, awaited after the loops have ended.
    """

    def __init__(
        self,
        loops: Sequence[Loop],
        followers: Sequence[Callable[[asyncio.Event], Coroutine[Any, Any, None]]],
        stages: Sequence[Callable[[], Awaitable[None]]],
    ) -> None:
        self._loops, self._followers, self._stages = loops, followers, stages
        self.failures = sweep_failures()
        for loop in loops:
            loop.failures = self.failures
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._following: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(loop.run(self._stop), name=loop.name) for loop in self._loops
        ]
        self._following = [asyncio.create_task(one(self._stop)) for one in self._followers]

    def wake(self) -> None:
        """Make every loop look now, and wait as long as its interval says now."""
        for loop in self._loops:
            loop.wake()

    async def stop(self) -> None:
        """End sweeps where they end, cancel followers, then stop the stages."""
        self._stop.set()
        self.wake()
        for task in self._following:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, *self._following, return_exceptions=True)
        for problem in ended:
            if isinstance(problem, Exception):
                log.error("loop.failed", error=repr(problem))
        for stop in self._stages:
            try:
                await stop()
            except Exception:  # the others must be stopped, too
                log.exception("stage.not_stopped")

    def stuck(self) -> list[str]:
        """Names of the loops that do not go round any more: only a restart helps them."""
        return [loop.name for loop in self._loops if loop.stuck]

    def loops(self) -> list[LoopState]:
        """How each loop is."""
        return [
            LoopState(loop.name, loop.last_ok_s, stuck=not loop.healthy) for loop in self._loops
        ]
