"""Gauges: what is read of the kernel's counters or sampled, when, and what a reading means."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from client_agent.sandbox.base import Process
from client_agent.sandbox.limits import usage
from client_agent.sandbox.limits.hard import (
    MIN_THROTTLED_PERIODS,
    CgroupGauge,
    HostDiskGauge,
)
from client_agent.sandbox.limits.meter import FINAL_READ_TRIES, Gauge, Meter
from client_agent.sandbox.limits.soft import DirectoryGauge, ProcessGauge, SampleThrottle
from shared.wire import Limits, Reason
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.real_sandbox import turns

LIMITS = Limits(cpus=0.5, memory=1000, pids=7, disk=100_000)
COUNTERS = ["oom_kills", "at_memory_limit", "refused_forks", "throttled", "cpu_s", "peak_memory"]


async def stops(gauge: Gauge, pid: int = -1) -> list[Reason | None]:
    """Why a look at the gauge stops the attempt."""
    reasons = list[Reason | None]()
    attempt = SimpleNamespace(pid=pid, stop=lambda reason, message, grace: reasons.append(reason))
    await gauge.poll(cast("Process", attempt))
    return reasons


async def at_the_end(gauge: Gauge) -> tuple[Reason | None, list[str]]:
    """The reason for the end, and the warnings."""
    assert await gauge.read_final() is True
    cause = gauge.end_cause()
    return None if cause is None else cause.reason, [*gauge.warnings()]


# ---------------------------------------------------------------- what the kernel counts


@each(
    "counters, reason, warning",
    [
        ({"oom_kills": 1}, Reason.AGENT_ERROR, ""),  # the host lacked memory
        ({"refused_forks": 1}, None, "pids_limit: once a process or thread was refused"),
        ({"refused_forks": 5}, None, "pids_limit: 5 times a process or thread was refused"),
        ({"throttled": MIN_THROTTLED_PERIODS - 1}, None, ""),
        ({"throttled": MIN_THROTTLED_PERIODS}, None, "cpu_limit: 10 times it had used its 0.5 CPU"),
    ],
)
async def test_what_the_counters_of_a_cgroup_mean(
    counters: dict[str, int], reason: Reason | None, warning: str
) -> None:
    group = mock.Mock(**{f"{name}.return_value": counters.get(name, 0) for name in COUNTERS})
    found, warnings = await at_the_end(CgroupGauge(group, LIMITS))
    assert (found, [one[: len(warning)] for one in warnings]) == (reason, [warning] * bool(warning))


async def test_the_disk_of_the_host_is_looked_at_once_more_and_never_holds_up_the_agent() -> None:
    """A job may be too short for a look while it runs."""
    for free, warned in ((999, ["agent_disk"]), (1000, [])):
        reason, warnings = await at_the_end(HostDiskGauge(lambda free=free: free, 1000))  # type: ignore[misc]
        assert (reason, [one.partition(":")[0] for one in warnings]) == (None, warned)
    answer = threading.Event()
    polling = asyncio.create_task(stops(HostDiskGauge(lambda: answer.wait(60) or 0, -1)))
    await turns(5)
    assert not polling.done()
    answer.set()
    assert await polling == []


# ---------------------------------------------------------------- what is sampled


@each(
    "sampled, exactly, reasons",
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
    gauge = ProcessGauge(LIMITS, 10.0, SimClock(), memory=sampled, cpu=sampled)
    assert (await stops(gauge), exactly) == (reasons, [])


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def directory_gauge(fd: int) -> DirectoryGauge:
    return DirectoryGauge(fd, LIMITS, 10, SimClock(), threading.Event())


async def test_files_written_after_the_last_look_count_at_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as fd:
        gauge = directory_gauge(fd)
        assert await stops(gauge) == []
        (tmp_path / "f").write_bytes(os.urandom(120_000))
        assert (await at_the_end(gauge))[0] is Reason.DISK_LIMIT


def test_a_walk_counts_blocks_and_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hard links and sparse files by what they take; it can be cancelled, and says where it was too
    deep."""

    def directory_usage(folder: Path, *given: Any) -> usage.DirectoryUsage:
        with opened(folder) as fd:
            return usage.directory_usage(fd, *given)

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


@each("name", ["process_usage", "exact_memory", "deleted_file_bytes", "directory_usage"])
async def test_slow_samples_do_not_block_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Forty processes with a thousand descriptors each took a second."""
    real, threads = getattr(usage, name), []

    def noted(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return real(*args)

    monkeypatch.setattr(usage, name, noted)
    # this process has more than the limit of 1000 bytes
    await stops(ProcessGauge(LIMITS, 10.0, SimClock(), memory=True, cpu=True), os.getpid())
    with opened(tmp_path) as fd:
        await stops(directory_gauge(fd))
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
    """Counts how often it is read, and fails at first."""

    def __init__(self) -> None:
        self.polled = self.lasts = self.fails = 0
        self.clean = True

    async def poll(self, attempt: Process) -> None:
        self.polled += 1
        self._fail()

    async def read_final(self) -> bool:
        self.lasts += 1
        self._fail()
        return self.clean

    def _fail(self) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError(errno.EMFILE, "Too many open files")


class Metered:
    """Two gauges that are read twice a second."""

    def __init__(self) -> None:
        self.first, self.second = Counting(), Counting()
        self.clock = SimClock()
        self.meter = Meter([self.first, self.second], self.clock, 0.5, threading.Event())
        self.meter.start(cast("Process", None))

    @property
    def counts(self) -> list[tuple[int, int]]:
        return [(one.polled, one.lasts) for one in (self.first, self.second)]


async def test_gauges_are_polled_at_the_interval_until_the_end_whatever_fails() -> None:
    metered = Metered()
    metered.first.fails = 2
    await metered.clock.advance(1.6)
    assert metered.counts == [(3, 0), (3, 0)]
    assert await metered.meter.stop() is True
    await metered.clock.advance(5.0)
    assert (metered.counts, metered.clock.sleeping) == ([(3, 1), (3, 1)], 0)


@each(
    "fails, clean, certain, lasts",
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
    error = "limits: what it used at its end is not known: [Errno 24] Too many open files"
    assert metered.meter.warnings() == [error] * (fails == FINAL_READ_TRIES)
