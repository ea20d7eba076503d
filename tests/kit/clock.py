"""Clocks of tests: one that moves only when a test says so, or by itself when all wait for it."""

import asyncio
import functools
import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import aiosqlite

from shared.clock import SECOND, Micros, RealClock

START: Final[Micros] = 1_800_000_000 * SECOND
_TURNS: Final = 50
"""Turns of the event loop in which woken tasks get as far as they can without I/O or threads."""
_GRACE_S: Final = 0.001
"""Real time in which nothing happens before all are taken to wait: for threads nobody counts."""
_UNDER_WAY: Final = frozenset("RD")
"""States of a thread that runs, is about to run, or waits for a disk."""
_PATIENCE_S: Final = 50.0
MOST_S: Final = 86_400.0


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
        works: list[Any] = [event.wait(), self.sleep(seconds)]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    @property
    def sleeping(self) -> int:
        return sum(1 for _, _, future in self._sleepers if not future.done())

    async def until_asleep(self, seconds: float) -> None:
        """Wait until some task has gone to sleep for exactly ``seconds`` from now.

        For a test whose other side works through sockets or threads: what it does before it sleeps
        takes real time.
        """
        due = self._monotonic + seconds
        async with asyncio.timeout(_PATIENCE_S):
            while not any(at == due and not future.done() for at, _, future in self._sleepers):
                self._new_sleeper.clear()
                await self._new_sleeper.wait()

    async def advance(self, seconds: float) -> None:
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

    @contextmanager
    def autojump(self, most_s: float = MOST_S) -> Iterator[None]:
        """Time passes by itself: as soon as all tasks wait, and no thread is under way, it is the
        time at which the next sleeper wakes. So a test waits for what comes, at once.

        Args:
            most_s: time that may pass in all; then the test fails, whatever it waits for.
        """
        task, end = asyncio.current_task(), self._monotonic + most_s
        assert task is not None
        late = False

        def next_sleeper() -> bool:
            nonlocal late
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)
            if not self._sleepers or late:
                return False
            if late := self._sleepers[0][0] > end:
                task.cancel(f"it did not happen in {most_s:g} s")
                return True
            due, _, future = heapq.heappop(self._sleepers)
            self._move(due)
            future.set_result(None)
            return True

        try:
            with _when_all_wait(asyncio.get_running_loop(), next_sleeper):
                yield
        except asyncio.CancelledError:
            if not late:
                raise
            task.uncancel()
            raise AssertionError(
                f"what the test waits for did not happen in {most_s:g} s"
            ) from None

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
        self._ahead += round(seconds * SECOND)


@contextmanager
def _when_all_wait(loop: asyncio.AbstractEventLoop, then: Callable[[], bool]) -> Iterator[None]:
    """Call it each time that the loop has nothing to do, and nothing that it waits for is under way
    in a thread or a socket of this process. It says whether there is something to do now.
    """
    selector: Any = vars(loop)["_selector"]
    look, run = selector.select, loop.run_in_executor
    execute = vars(aiosqlite.Connection)["_execute"]
    hops = 0

    def select(timeout: float | None = None) -> Any:
        found = look(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if hops:
            return look(timeout)
        grace = _GRACE_S if timeout is None else min(timeout, _GRACE_S)
        if (found := look(grace)) or grace < _GRACE_S or _threads_under_way():
            return found
        return [] if then() else look(timeout)

    def back(_: object) -> None:
        nonlocal hops
        hops -= 1

    def counted_run(*work: Any) -> Any:
        nonlocal hops
        future = run(*work)
        hops += 1
        future.add_done_callback(back)
        return future

    @functools.wraps(execute)
    async def counted_execute(*work: Any, **more: Any) -> Any:
        nonlocal hops
        hops += 1
        try:
            return await execute(*work, **more)
        finally:
            hops -= 1

    with (
        mock.patch.object(selector, "select", select),
        mock.patch.object(loop, "run_in_executor", counted_run),
        mock.patch.object(aiosqlite.Connection, "_execute", counted_execute),
    ):
        yield


def _threads_under_way() -> bool:
    """Whether another thread of this process is not idle; one that sleeps is."""
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.native_id is None:
            continue
        try:
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        if stat.rpartition(")")[2].split()[0] in _UNDER_WAY:
            return True
    return False
