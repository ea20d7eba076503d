"""One sweep after another: at each wake-up, and at the latest after the interval."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

import structlog
from prometheus_client import Counter

from shared import logs
from shared.clock import Clock, wait_for
from shared.metrics import counter
from shared.probe import PATIENCE_S

log = structlog.get_logger()


class Sweep(Protocol):
    """It may have a method ``until_next_s``: seconds until it knows that it has something to do."""

    async def run_once(self) -> int:
        """Do what is to be done now; how many things were."""
        ...


class Loop:
    """Runs a sweep again and again; never stops in the middle of one.

    Args:
        every_s: longest time between sweeps.
        wakeup: makes the next sweep come at once.
    """

    def __init__(
        self, name: str, sweep: Sweep, every_s: float, wakeup: asyncio.Event, clock: Clock
    ) -> None:
        self.name, self._sweep, self._every_s = name, sweep, every_s
        self._until_next_s: Callable[[], float] = getattr(sweep, "until_next_s", lambda: math.inf)
        self.wakeup, self._clock = wakeup, clock
        self.last_ok = clock.monotonic()
        """When a sweep ended well last; for ``/health``."""
        self._round_at = self.last_ok

    @property
    def last_ok_s(self) -> float:
        """Seconds since then."""
        return self._clock.monotonic() - self.last_ok

    @property
    def healthy(self) -> bool:
        """Whether that is not far longer ago than it should be."""
        return self.last_ok_s < 10 * self._every_s + 60

    @property
    def stuck(self) -> bool:
        """Whether a sweep does not end, well or not, or the loop has ended."""
        return self._clock.monotonic() - self._round_at > self._every_s + PATIENCE_S

    async def run(self, stop: asyncio.Event, failures: Counter | None = None) -> None:
        """Return after ``stop`` is set and the loop was woken. ``failures``: of all loops."""
        while not stop.is_set():
            self._round_at = self._clock.monotonic()
            self.wakeup.clear()
            wait_s = self._every_s
            try:
                touched = await self._sweep.run_once()
            except Exception:
                log.exception("sweep.failed", sweep=self.name)
                if failures is not None:
                    failures.labels(self.name).inc()
            else:
                self.last_ok = self._clock.monotonic()
                logs.FOLDING.over("sweep.failed", sweep=self.name)
                wait_s = min(wait_s, self._until_next_s())
                if touched:
                    log.debug("sweep.done", sweep=self.name, touched=touched)
            await wait_for(self.wakeup, wait_s, self._clock)


class Supervisor:
    """Runs loops and followers until :meth:`stop`."""

    def __init__(self) -> None:
        self.loops: Sequence[Loop] = ()
        self.failures = counter("ferryman_loop_failures", "Sweeps that failed.", "loop")
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._following: list[asyncio.Task[None]] = []

    def start(
        self,
        loops: Sequence[Loop],
        followers: Sequence[Callable[[asyncio.Event], Coroutine[Any, Any, None]]],
    ) -> None:
        """Args:
        followers: called with the stop event; cancelled at the end, as they may hang on a socket.
        """
        self.loops = loops
        self._tasks = [asyncio.create_task(one.run(self._stop, self.failures)) for one in loops]
        self._following = [asyncio.create_task(one(self._stop)) for one in followers]

    async def stop(self, stages: Sequence[Callable[[], Awaitable[object]]]) -> None:
        """End sweeps where they end, cancel followers, then stop the stages, one by one."""
        self._stop.set()
        for loop in self.loops:
            loop.wakeup.set()
        for task in self._following:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, *self._following, return_exceptions=True)
        for problem in ended:
            if isinstance(problem, Exception):
                log.error("loop.failed", error=repr(problem))
        for stop in stages:
            try:
                await stop()
            except Exception:  # the others must be stopped, too
                log.exception("stage.not_stopped")

    def stuck(self) -> list[str]:
        """Names of the loops that do not go round any more: only a restart helps them."""
        return [loop.name for loop in self.loops if loop.stuck]
