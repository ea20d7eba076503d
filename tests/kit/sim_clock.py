"""A clock that moves only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
from typing import Final

from shared.clock import SECOND, Micros, RealClock

START: Final[Micros] = 1_800_000_000 * SECOND
_TURNS: Final = 50
"""Turns of the event loop in which woken tasks get as far as they can without I/O or threads."""


class SimClock:
    """``shared.clock.Clock`` on simulated time.

    Sleepers wake in due order, and each gets its turn before the next wakes: a test that advances
    by a minute sees what a minute would have shown, at once and the same way every time.
    """

    def __init__(self, start: Micros = START) -> None:
        self._wall = start
        self._monotonic = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = 0
        self._new_sleeper = asyncio.Event()

    def now(self) -> Micros:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def boottime(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._number, future))
        self._new_sleeper.set()
        await future

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        tasks = [asyncio.create_task(event.wait()), asyncio.create_task(self._asleep(seconds))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _asleep(self, seconds: float) -> bool:
        await self.sleep(seconds)
        return True

    @property
    def sleeping(self) -> int:
        """How many tasks wait for time to pass."""
        return sum(1 for _, _, future in self._sleepers if not future.done())

    async def until_asleep(self, seconds: float) -> None:
        """Wait until some task has gone to sleep for exactly ``seconds`` from now.

        For a test whose other side works through sockets or threads: what it does before it sleeps
        takes real time.
        """
        due = self._monotonic + seconds
        while not any(at == due and not future.done() for at, _, future in self._sleepers):
            self._new_sleeper.clear()
            await self._new_sleeper.wait()

    async def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        end = self._monotonic + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self._move(due)
            future.set_result(None)
            await self.settle()
        self._move(end)

    async def settle(self) -> None:
        """Let every task run until it waits."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator does; no sleeper notices."""
        self._wall += round(seconds * SECOND)

    def _move(self, to: float) -> None:
        self._wall += round((to - self._monotonic) * SECOND)
        self._monotonic = to


class JumpingClock(RealClock):
    """The machine's clock, with a wall clock that a test sets and time that it lets pass."""

    def __init__(self) -> None:
        self._ahead: Micros = 0
        self._passed_s = 0.0

    def now(self) -> Micros:
        return super().now() + self._ahead

    def monotonic(self) -> float:
        return super().monotonic() + self._passed_s

    def boottime(self) -> float:
        return super().boottime() + self._passed_s

    def forward(self, seconds: float) -> None:
        """Let time pass on all three clocks; who sleeps does not notice."""
        self._passed_s += seconds
        self.jump(seconds)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._ahead += round(seconds * SECOND)
