"""Gauges: what is read of the kernel's counters or sampled, when, and what a reading means."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from client_agent.sandbox.base import Process
from client_agent.sandbox.kernel.cgroups import Cgroup
from client_agent.sandbox.limits import usage
from client_agent.sandbox.limits.hard import (
    MIN_THROTTLED_PERIODS,
    CgroupGauge,
    HostDiskGauge,
)
from client_agent.sandbox.limits.meter import FINAL_READ_TRIES, EndCause, Gauge, Meter
from client_agent.sandbox.limits.soft import DirectoryGauge, ProcessGauge, SampleThrottle
from shared.wire import Limits, Reason
from tests.kit.clock import SimClock
from tests.kit.real_sandbox import turns

LIMITS = Limits(cpus=0.5, memory=1000, pids=7, disk=100_000)


class Attempt:
    """Keeps how it is stopped."""

    def __init__(self, pid: int = -1) -> None:
        self.pid = pid
        self.stops: list[tuple[Reason | None, str, bool]] = []

    def stop(self, reason: Reason | None, message: str, *, grace: bool = True) -> None:
        self.stops.append((reason, message, grace))


async def stops(gauge: Gauge, pid: int = -1) -> list[tuple[Reason | None, str, bool]]:
    """How a look at the gauge stops the attempt."""
    attempt = Attempt(pid)
    await gauge.poll(cast("Process", attempt))
    return attempt.stops


async def at_the_end(gauge: Gauge) -> tuple[Reason | None, list[str]]:
    """The reason for the end, and the first words of the warnings."""
    assert await gauge.read_final() is True
    cause = gauge.end_cause()
    return None if cause is None else cause.reason, [w.split(";")[0] for w in gauge.warnings()]


# ---------------------------------------------------------------- what the kernel counts


class Group:
    """A cgroup's counters."""

    kills = refused = waits = 0
    met = True

    def __init__(self, **counters: Any) -> None:
        vars(self).update(counters)
        self.gauge = CgroupGauge(cast("Cgroup", self), LIMITS)

    at_memory_limit = lambda self: self.met  # noqa: E731
    throttled = lambda self: self.waits  # noqa: E731
    oom_kills = lambda self: self.kills  # noqa: E731
    refused_forks = lambda self: self.refused  # noqa: E731
    cpu_s = lambda self: 1.5  # noqa: E731
    peak_memory = lambda self: 999  # noqa: E731


async def test_a_kill_because_the_host_lacked_memory_is_not_the_jobs_limit() -> None:
    group = Group(kills=1, met=False)
    assert [reason for reason, _, _ in await stops(group.gauge)] == [Reason.AGENT_ERROR]
    assert (await at_the_end(group.gauge))[0] is Reason.AGENT_ERROR


@pytest.mark.parametrize(
    ("counters", "warning"),
    [
        ({"refused": 1}, "pids_limit: once a process or thread was refused"),
        ({"refused": 5}, "pids_limit: 5 times a process or thread was refused"),
        ({"waits": MIN_THROTTLED_PERIODS - 1}, ""),
        ({"waits": MIN_THROTTLED_PERIODS}, "cpu_limit: 10 times it had used its 0.5 CPUs up"),
    ],
)
async def test_refused_processes_and_throttling_are_warnings(
    counters: dict[str, int], warning: str
) -> None:
    reason, warnings = await at_the_end(Group(**counters).gauge)
    assert reason is None
    assert [one[: len(warning)] for one in warnings] == ([warning] if warning else [])


@pytest.mark.parametrize(("free", "warned"), [(999, ["agent_disk"]), (1000, [])])
async def test_a_job_too_short_for_a_look_gets_the_warning_about_the_hosts_disk(
    free: int, warned: list[str]
) -> None:
    reason, warnings = await at_the_end(HostDiskGauge(lambda: free, 1000))
    assert (reason, [one.partition(":")[0] for one in warnings]) == (None, warned)


async def test_a_disk_of_the_host_that_hangs_does_not_block_the_event_loop() -> None:
    answer = threading.Event()
    polling = asyncio.create_task(stops(HostDiskGauge(lambda: answer.wait(60) or 0, -1)))
    await turns(5)
    assert not polling.done()
    answer.set()
    assert await polling == []


# ---------------------------------------------------------------- what is sampled


def process_gauge(*, sampled: bool = True) -> ProcessGauge:
    return ProcessGauge(LIMITS, 10.0, SimClock(), memory=sampled, cpu=sampled)


@pytest.mark.parametrize(
    ("sampled", "exactly", "reasons"),
    [
        (True, [900], []),  # most of it is shared
        (True, [1001, 999], []),  # while processes end, what they share is counted several times
        (True, [1001, 1001], [Reason.MEMORY_LIMIT]),
        (False, [], []),  # a cgroup's
    ],
)
async def test_soft_memory_limits_are_checked_twice_before_the_job_is_ended(
    monkeypatch: pytest.MonkeyPatch, sampled: bool, exactly: list[int], reasons: list[Reason]
) -> None:
    monkeypatch.setattr(usage, "process_usage", lambda _: usage.ProcessUsage(0.0, 2000))
    monkeypatch.setattr(usage, "exact_memory", lambda *_: exactly.pop(0))
    monkeypatch.setattr(usage, "deleted_file_bytes", lambda *_: 0)
    assert [reason for reason, _, _ in await stops(process_gauge(sampled=sampled))] == reasons
    assert exactly == []


@contextmanager
def directory_gauge(folder: Path, most: int = 10) -> Iterator[DirectoryGauge]:
    fd = os.open(folder, os.O_RDONLY)
    yield DirectoryGauge(fd, LIMITS, most, SimClock(), threading.Event())
    os.close(fd)


async def test_files_written_after_the_last_look_count_at_the_end(tmp_path: Path) -> None:
    with directory_gauge(tmp_path) as gauge:
        assert await stops(gauge) == []
        (tmp_path / "f").write_bytes(os.urandom(120_000))
        assert (await at_the_end(gauge))[0] is Reason.DISK_LIMIT


def directory_usage(folder: Path, *given: Any) -> usage.DirectoryUsage:
    fd = os.open(folder, os.O_RDONLY)
    try:
        return usage.directory_usage(fd, *given)
    finally:
        os.close(fd)


def test_a_walk_counts_blocks_and_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hard links and sparse files by what they take; it can be cancelled, and says where it was too
    deep."""
    links, many, deep = (tmp_path / name for name in ("links", "many", "deep"))
    links.mkdir()
    (links / "f").write_bytes(os.urandom(40_960))
    os.link(links / "f", links / "g")
    with (links / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    stored = directory_usage(links, 100)
    assert stored.entries == 3
    assert 40_960 <= stored.bytes < 80_000
    many.mkdir()
    for i in range(600):
        (many / str(i)).write_bytes(b"")
    assert directory_usage(many, 10_000, lambda: True).entries == 256
    assert directory_usage(many, 10_000, lambda: False).entries == 600
    monkeypatch.setattr(usage, "MAX_DEPTH", 3)
    (deep / "a/b/c/d").mkdir(parents=True)
    assert directory_usage(deep, 100).too_deep


@pytest.mark.parametrize(
    "name", ["process_usage", "exact_memory", "deleted_file_bytes", "directory_usage"]
)
async def test_slow_samples_do_not_block_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Forty processes with a thousand descriptors each took a second."""
    real, threads = getattr(usage, name), []

    def noted(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return real(*args)

    monkeypatch.setattr(usage, name, noted)
    await stops(process_gauge(), os.getpid())  # more than the limit of 1000 bytes
    with directory_gauge(tmp_path) as gauge:
        await stops(gauge)
    assert threads
    assert threading.get_ident() not in threads


async def test_after_a_long_sample_there_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimClock()
    pace = SampleThrottle(clock, 10.0)
    assert await pace.sample(lambda: 7) == 7
    assert pace.due, "it took no time"
    seen = []
    for moments in ([0.0, 2.0, 21.9], [100.0, 102.0, 122.1]):
        monkeypatch.setattr(clock, "monotonic", iter(moments).__next__)
        await pace.sample(lambda: None)
        seen.append(pace.due)
    assert seen == [False, True]


# ---------------------------------------------------------------- when gauges are read


class Counting(Gauge):
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


class Metered:
    """Two gauges that are read twice a second."""

    def __init__(self, *gauges: Counting) -> None:
        self.first, self.second = gauges or (Counting(), Counting())
        self.clock, self.all_dead = SimClock(), threading.Event()
        self.meter = Meter([self.first, self.second], self.clock, 0.5, self.all_dead)

    def start(self) -> None:
        self.meter.start(cast("Process", Attempt()))

    @property
    def counts(self) -> list[tuple[int, int]]:
        return [(one.polled, one.lasts) for one in (self.first, self.second)]


async def test_gauges_are_polled_at_the_interval_until_the_end() -> None:
    """Whatever fails."""
    metered = Metered()
    metered.first.fails = 2
    metered.start()
    await metered.clock.advance(1.6)
    assert metered.counts == [(3, 0), (3, 0)]
    assert await metered.meter.stop() is True
    await metered.clock.advance(5.0)
    assert (metered.counts, metered.clock.sleeping) == ([(3, 1), (3, 1)], 0)


async def test_a_running_poll_ends_before_the_final_readings() -> None:
    metered = Metered()
    hold = metered.first.hold = asyncio.Event()
    metered.start()
    await metered.clock.advance(0.6)
    stopping = asyncio.create_task(metered.meter.stop())
    await metered.clock.advance(0.1)
    assert (metered.all_dead.is_set(), stopping.done(), metered.first.lasts) == (True, False, 0)
    hold.set()
    assert await stopping is True
    assert metered.counts[0] == (1, 1)


@pytest.mark.parametrize(
    ("fails", "clean", "certain", "lasts"),
    [
        (0, False, False, 1),
        (2, False, False, 3),
        (FINAL_READ_TRIES, True, True, FINAL_READ_TRIES),
    ],
)
async def test_a_final_reading_that_fails_is_repeated(
    fails: int, clean: bool, certain: bool, lasts: int
) -> None:
    """One gauge that is not certain makes the end uncertain; one that cannot be read is a
    warning."""
    metered = Metered()
    metered.first.fails, metered.first.clean = fails, clean
    stopping = asyncio.create_task(metered.meter.stop())
    await metered.clock.advance(0.5 * FINAL_READ_TRIES)
    assert await stopping is certain
    assert metered.counts == [(0, lasts), (0, 1)]
    unknown = [one for one in metered.meter.warnings() if one not in ("w0",)]
    assert len(unknown) == (fails == FINAL_READ_TRIES)
    assert all(one.endswith("not known: [Errno 24] Too many open files") for one in unknown)


def test_the_first_end_cause_and_the_largest_usage_count() -> None:
    metered = Metered(Counting(1.0, 10), Counting(2.0, None))
    metered.second.cause = EndCause(Reason.DISK_LIMIT, "full")
    assert metered.meter.end_cause() == metered.second.cause
    assert metered.meter.usage() == (2.0, 10)
    assert Meter([], SimClock(), 1, threading.Event()).usage() == (None, None)
