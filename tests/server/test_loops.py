"""Sweeps one after another, and how everything that runs is stopped."""

from __future__ import annotations

import asyncio
import math

import pytest
from structlog.testing import capture_logs

from server.loops.runner import Loop, Supervisor
from server.loops.wakeups import JobWakeups
from tests.kit.clock import SimClock


class Sweep:
    """Notes when it ran; fails, or waits for ``go``, where the test says so."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.at: list[float] = []
        self.ended: list[float] = []
        self.problem: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()

    async def run_once(self) -> int:
        self.at.append(self._clock.monotonic())
        await self.go.wait()
        if self.problem is not None:
            raise self.problem
        self.ended.append(self._clock.monotonic())
        return 1


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


async def test_a_sweep_comes_at_its_interval_and_at_once_when_it_is_woken(clock: SimClock) -> None:
    sweep, wakeup, stop = Sweep(clock), asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(Loop("x", sweep, 5.0, wakeup, clock).run(stop))
    await clock.advance(7)
    wakeup.set()
    await clock.advance(6)
    stop.set()
    wakeup.set()
    await task
    assert sweep.at == [0, 5, 7, 12]


class Timed(Sweep):
    """Knows at 0 s that it has something to do at 2 s, and then of nothing more."""

    def until_next_s(self) -> float:
        return 2.0 if len(self.at) == 1 else math.inf


async def test_a_sweep_that_knows_when_it_has_something_to_do_comes_then(clock: SimClock) -> None:
    sweep, wakeup, stop = Timed(clock), asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(Loop("x", sweep, 60.0, wakeup, clock).run(stop))
    await clock.advance(50)
    stop.set()
    wakeup.set()
    await task
    assert sweep.at == [0, 2]


async def test_a_wake_up_during_a_sweep_is_not_lost(clock: SimClock) -> None:
    sweep, wakeup, stop = Sweep(clock), asyncio.Event(), asyncio.Event()
    sweep.go.clear()
    task = asyncio.create_task(Loop("x", sweep, 5.0, wakeup, clock).run(stop))
    await clock.settle()
    wakeup.set()
    sweep.go.set()
    await clock.settle()
    stop.set()
    wakeup.set()
    await task
    assert sweep.at == [0, 0]


async def test_a_sweep_that_fails_is_followed_by_the_next(clock: SimClock) -> None:
    sweep, wakeup, stop = Sweep(clock), asyncio.Event(), asyncio.Event()
    sweep.problem = RuntimeError("bad")
    loop = Loop("x", sweep, 5.0, wakeup, clock)
    with capture_logs() as logs:
        task = asyncio.create_task(loop.run(stop))
        healthy = []
        for seconds in (109, 2, 5):  # ten intervals and a minute without a good one are too long
            await clock.advance(seconds)
            healthy.append(loop.healthy)
            if not loop.healthy:
                sweep.problem = None
        assert healthy == [True, False, True]
        stop.set()
        wakeup.set()
        await task
    failed = [line for line in logs if line["event"] == "sweep.failed"]
    assert len(sweep.at) == len(failed) + len(sweep.ended) == 24
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
        order.append(f"stage, sweeps ended: {len(sweep.ended)}")

    loops = [
        Loop(name, one, 60.0, wakeup, clock)
        for name, one, wakeup in (
            ("sender", sweep, wakeups.sender),
            ("getter", Sweep(clock), wakeups.getter),
            ("canceller", Sweep(clock), wakeups.canceller),
            ("cleaner", Sweep(clock), wakeups.cleaner),
        )
    ]
    supervisor = Supervisor(loops, [follows, fails], [stage, stage])
    with capture_logs() as logs:
        supervisor.start()
        await clock.settle()
        stopping = asyncio.create_task(supervisor.stop())
        await clock.settle()
        assert not stopping.done()  # a sweep is under way
        sweep.go.set()
        await stopping
    assert order == ["follower, stop requested: True", *["stage, sweeps ended: 1"] * 2]
    assert [line["error"] for line in logs if line["event"] == "loop.failed"] == [
        "RuntimeError('follower')"
    ]
    assert [one.name for one in supervisor.loops() if one.stuck] == []


async def test_a_loop_that_is_stuck_is_named(clock: SimClock) -> None:
    wakeups, sweep = JobWakeups(), Sweep(clock)
    sweep.go.clear()
    loop = Loop("sender", sweep, 1.0, wakeups.sender, clock)
    supervisor = Supervisor([loop], [], [])
    supervisor.start()
    await clock.advance(69)
    assert [one.name for one in supervisor.loops() if one.stuck] == []
    await clock.advance(2)
    assert [one.name for one in supervisor.loops() if one.stuck] == ["sender"]
    sweep.go.set()
    await supervisor.stop()
