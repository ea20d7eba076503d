"""Sweeps one after another, who is woken, and how everything that runs is stopped."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from server.loops.runner import Loop, Supervisor
from server.loops.wakeups import JobWakeups
from shared.wire import JobState
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.jobs import job


class Sweep:
    """Notes when it ran; fails, or waits for ``go``, where the test says so."""

    def __init__(self, clock: SimClock, first: float = math.inf) -> None:
        """``first``: seconds after its first run in which it has something to do."""
        self._clock, self._first = clock, first
        self.at: list[float] = []
        self.ended = 0
        self.problem: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()

    def until_next_s(self) -> float:
        return self._first if len(self.at) == 1 else math.inf

    async def run_once(self) -> int:
        self.at.append(self._clock.monotonic())
        await self.go.wait()
        if self.problem is not None:
            raise self.problem
        self.ended += 1
        return 1


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@asynccontextmanager
async def running(loop: Loop, wakeup: asyncio.Event) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(loop.run(stop))
    yield
    stop.set()
    wakeup.set()
    await task


@each("first, at", [(math.inf, [0, 5, 7, 12]), (1.0, [0, 1, 6, 7, 12])])
async def test_a_sweep_comes_at_its_interval_or_when_it_has_something_to_do_or_is_woken(
    first: float, at: list[float]
) -> None:
    clock, wakeup = SimClock(), asyncio.Event()
    sweep = Sweep(clock, first)
    async with running(Loop("x", sweep, 5.0, wakeup, clock), wakeup):
        await clock.advance(7)
        wakeup.set()
        await clock.advance(6)
    assert sweep.at == at


async def test_a_wake_up_during_a_sweep_is_not_lost(clock: SimClock) -> None:
    sweep, wakeup = Sweep(clock), asyncio.Event()
    sweep.go.clear()
    async with running(Loop("x", sweep, 5.0, wakeup, clock), wakeup):
        await clock.settle()
        wakeup.set()
        sweep.go.set()
        await clock.settle()
    assert sweep.at == [0, 0]


async def test_a_sweep_that_fails_is_followed_by_the_next(clock: SimClock) -> None:
    sweep, wakeup, healthy = Sweep(clock), asyncio.Event(), []
    sweep.problem = RuntimeError("bad")
    loop = Loop("x", sweep, 5.0, wakeup, clock)
    with capture_logs() as logs:
        async with running(loop, wakeup):
            for seconds in (109, 2, 5):  # ten intervals and a minute without a good one: too long
                await clock.advance(seconds)
                healthy.append(loop.healthy)
                if not loop.healthy:
                    sweep.problem = None
    assert healthy == [True, False, True]
    failed = [line for line in logs if line["event"] == "sweep.failed"]
    assert len(sweep.at) == len(failed) + sweep.ended == 24
    assert {line["sweep"] for line in failed} == {"x"}


async def test_stopping_lets_sweeps_end_breaks_off_followers_and_stops_the_stages_last(
    clock: SimClock,
) -> None:
    wakeups, sweep, order = JobWakeups(), Sweep(clock), list[str]()
    sweep.go.clear()

    async def follows(stop: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append(f"follower, stop requested: {stop.is_set()}")

    async def fails(_: asyncio.Event) -> None:
        raise RuntimeError("follower")

    async def stage() -> None:
        order.append(f"stage, sweeps ended: {sweep.ended}")

    loops = [
        Loop("sender", sweep, 60.0, wakeups.sender, clock),
        Loop("getter", Sweep(clock), 60.0, wakeups.getter, clock),
    ]
    supervisor = Supervisor(loops, [follows, fails], [stage, stage])
    with capture_logs() as logs:
        supervisor.start()
        for seconds, stuck in ((659, []), (2, ["sender"])):
            await clock.advance(seconds)
            assert [one.name for one in supervisor.loops() if one.stuck] == stuck
        stopping = asyncio.create_task(supervisor.stop())
        await clock.settle()
        assert not stopping.done()  # a sweep is under way
        sweep.go.set()
        await stopping
    assert order == ["follower, stop requested: True", *["stage, sweeps ended: 1"] * 2]
    problems = [line["error"] for line in logs if line["event"] == "loop.failed"]
    assert problems == ["RuntimeError('follower')"]


def test_who_waits_for_the_end_sleeps_through_the_way_and_the_sender_without_work() -> None:
    wakeups, over = JobWakeups(), job(id=1, state=JobState.COMPLETED, ended_at=1)
    with wakeups.of(1) as each, wakeups.of(1, end_only=True) as end, wakeups.of(2) as other:
        wakeups.changed(job(id=1))
        assert (each.is_set(), end.is_set(), other.is_set()) == (True, False, False)
        wakeups.changed(over)
        assert (end.is_set(), other.is_set()) == (True, False)
    wakeups.send()
    assert not wakeups.sender.is_set(), "nothing is queued"
    wakeups.changed(job(id=2, state=JobState.QUEUED))
    assert wakeups.sender.is_set()
    wakeups.sender.clear()
    wakeups.changed(over)
    assert wakeups.sender.is_set(), "a slot is free"
