"""When the gauges of an attempt are read, and what their readings mean."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence

from client_agent.sandbox.base import Process
from client_agent.sandbox.limits.meter import FINAL_READ_TRIES, EndCause, Gauge, Meter
from shared.wire import Limits, Reason
from tests.kit.clock import SimClock
from tests.kit.fake_attempt import FakeAttempt, attempt_of

LIMITS = Limits(cpus=0.5, memory=1000, pids=7, disk=100_000)


class FakeGauge(Gauge):
    def __init__(self, cpu_s: float | None = None, peak: int | None = None) -> None:
        self.cpu_s, self.peak_memory = cpu_s, peak
        self.polled = self.lasts = 0
        self.clean = True
        self.hold: asyncio.Event | None = None
        self.fails = 0
        """So many calls raise first."""
        self.cause: EndCause | None = None

    async def poll(self, attempt: Process) -> None:
        self.polled += 1
        self._fail()
        if self.hold is not None:
            await self.hold.wait()

    async def read_final(self) -> bool:
        self.lasts += 1
        self._fail()
        return self.clean

    def _fail(self) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError(errno.EMFILE, "Too many open files")

    def end_cause(self) -> EndCause | None:
        return self.cause

    def warnings(self) -> Sequence[str]:
        return [f"w{self.polled}"]


async def test_gauges_are_polled_at_the_interval_until_the_end() -> None:
    clock, gauge = SimClock(), FakeGauge()
    meter = Meter([gauge], clock, 0.5, threading.Event())
    meter.start(attempt_of(FakeAttempt()))
    await clock.advance(1.6)
    assert gauge.polled == 3
    assert await meter.stop() is True
    await clock.advance(5.0)
    assert (gauge.polled, gauge.lasts) == (3, 1)
    assert clock.sleeping == 0


async def test_a_running_poll_ends_before_the_final_readings() -> None:
    clock, gauge, all_dead = SimClock(), FakeGauge(), threading.Event()
    gauge.hold = asyncio.Event()
    meter = Meter([gauge], clock, 0.5, all_dead)
    meter.start(attempt_of(FakeAttempt()))
    await clock.advance(0.6)
    stopping = asyncio.create_task(meter.stop())
    await clock.advance(0.1)
    assert all_dead.is_set()
    assert (stopping.done(), gauge.lasts) == (False, 0)
    gauge.hold.set()
    assert await stopping is True
    assert (gauge.polled, gauge.lasts) == (1, 1)


async def test_one_gauge_that_is_not_certain_makes_the_end_uncertain() -> None:
    first, second = FakeGauge(), FakeGauge()
    first.clean = False
    meter = Meter([first, second], SimClock(), 0.5, threading.Event())
    assert await meter.stop() is False
    assert (first.lasts, second.lasts) == (1, 1)


async def test_a_poll_that_fails_does_not_stop_other_gauges_or_later_polls() -> None:
    clock, first, second = SimClock(), FakeGauge(), FakeGauge()
    first.fails = 2
    meter = Meter([first, second], clock, 0.5, threading.Event())
    meter.start(attempt_of(FakeAttempt()))
    await clock.advance(1.6)
    assert (first.polled, second.polled) == (3, 3)
    assert await meter.stop() is True


async def test_a_final_reading_that_fails_is_repeated() -> None:
    clock, gauge = SimClock(), FakeGauge()
    gauge.fails, gauge.clean = 2, False
    meter = Meter([gauge], clock, 0.5, threading.Event())
    stopping = asyncio.create_task(meter.stop())
    await clock.advance(1.1)
    assert (await stopping, gauge.lasts) == (False, 3)
    assert meter.warnings() == ["w0"]


async def test_a_limit_that_cannot_be_read_at_the_end_is_a_warning() -> None:
    clock, first, second = SimClock(), FakeGauge(), FakeGauge()
    first.fails = FINAL_READ_TRIES
    meter = Meter([first, second], clock, 0.5, threading.Event())
    stopping = asyncio.create_task(meter.stop())
    await clock.advance(0.5 * FINAL_READ_TRIES)
    assert (await stopping, second.lasts) == (True, 1)
    assert meter.warnings()[-1].endswith("not known: [Errno 24] Too many open files")


def test_the_first_end_cause_and_the_largest_usage_count() -> None:
    first, second = FakeGauge(1.0, 10), FakeGauge(2.0, None)
    second.cause = EndCause(Reason.DISK_LIMIT, "full")
    meter = Meter([first, second], SimClock(), 0.5, threading.Event())
    assert meter.end_cause() == second.cause
    assert meter.usage() == (2.0, 10)
    assert meter.warnings() == ["w0", "w0"]
    assert Meter([], SimClock(), 1, threading.Event()).usage() == (None, None)
