"""Gauges: what is looked at, when, and what it means."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from client_agent.sandbox import usage
from client_agent.sandbox.attempt import Attempt
from client_agent.sandbox.cgroups import Group
from client_agent.sandbox.images import Image
from client_agent.sandbox.meter import (
    CgroupGauge,
    DirectoryGauge,
    ImageGauge,
    Meter,
    ProcessGauge,
    Verdict,
)
from shared.wire import Limits, Reason
from tests.support.simclock import SimClock

LIMITS = Limits(cpus=0.5, memory=1000, pids=7, disk=100_000)


class FakeAttempt:
    """Notes what a gauge asks for."""

    def __init__(self, pid: int = -1) -> None:
        self.pid = pid
        self.stops: list[tuple[Reason | None, str, bool]] = []

    def stop(self, reason: Reason | None, message: str, *, grace: bool = True) -> None:
        self.stops.append((reason, message, grace))


def attempt_of(fake: FakeAttempt) -> Attempt:
    return cast("Attempt", fake)


class FakeGauge:
    def __init__(self, cpu_s: float | None = None, peak: int | None = None) -> None:
        self.cpu_s, self.peak_memory = cpu_s, peak
        self.polled = self.lasts = 0
        self.clean = True
        self.hold: asyncio.Event | None = None
        self.found: Verdict | None = None

    async def poll(self, attempt: Attempt) -> None:
        self.polled += 1
        if self.hold is not None:
            await self.hold.wait()

    async def last(self) -> bool:
        self.lasts += 1
        return self.clean

    def verdict(self) -> Verdict | None:
        return self.found

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


async def test_a_look_under_way_ends_before_the_last_readings() -> None:
    clock, gauge, hurry = SimClock(), FakeGauge(), threading.Event()
    gauge.hold = asyncio.Event()
    meter = Meter([gauge], clock, 0.5, hurry)
    meter.start(attempt_of(FakeAttempt()))
    await clock.advance(0.6)
    stopping = asyncio.create_task(meter.stop())
    await clock.advance(0.1)
    assert hurry.is_set()
    assert (stopping.done(), gauge.lasts) == (False, 0)
    gauge.hold.set()
    assert await stopping is True
    assert (gauge.polled, gauge.lasts) == (1, 1)


async def test_one_gauge_that_is_not_sure_makes_the_end_uncertain() -> None:
    first, second = FakeGauge(), FakeGauge()
    first.clean = False
    meter = Meter([first, second], SimClock(), 0.5, threading.Event())
    assert await meter.stop() is False
    assert (first.lasts, second.lasts) == (1, 1)


def test_the_first_verdict_counts_and_the_largest_usage() -> None:
    first, second = FakeGauge(1.0, 10), FakeGauge(2.0, None)
    second.found = Verdict(Reason.DISK_LIMIT, "full")
    meter = Meter([first, second], SimClock(), 0.5, threading.Event())
    assert meter.verdict() == second.found
    assert meter.usage() == (2.0, 10)
    assert meter.warnings() == ["w0", "w0"]
    assert Meter([], SimClock(), 1, threading.Event()).usage() == (None, None)


class FakeGroup:
    kills = refused = 0

    def oom_kills(self) -> int:
        return self.kills

    def refused_forks(self) -> int:
        return self.refused

    def cpu_s(self) -> float | None:
        return 1.5

    def peak_memory(self) -> int | None:
        return 999


async def test_the_kernels_kill_for_memory_ends_the_rest() -> None:
    group, fake = FakeGroup(), FakeAttempt()
    gauge = CgroupGauge(cast("Group", group), LIMITS)
    await gauge.poll(attempt_of(fake))
    assert fake.stops == []
    group.kills = 1
    await gauge.poll(attempt_of(fake))
    message = "the job needed more than its 1000 bytes of memory"
    assert fake.stops == [(Reason.MEMORY_LIMIT, message, False)]
    await gauge.last()
    assert gauge.verdict() == Verdict(Reason.MEMORY_LIMIT, message)
    assert (gauge.cpu_s, gauge.peak_memory) == (1.5, 999)


@pytest.mark.parametrize(("times", "words"), [(1, "once"), (5, "5 times")])
async def test_refused_processes_are_a_warning(times: int, words: str) -> None:
    group = FakeGroup()
    group.refused = times
    gauge = CgroupGauge(cast("Group", group), LIMITS)
    await gauge.last()
    assert gauge.verdict() is None
    (warning,) = gauge.warnings()
    assert warning.startswith(f"pids_limit: {words} a process or thread was refused")


class FakeImage:
    state: str | None = None

    def full(self) -> str | None:
        return self.state


@pytest.mark.parametrize(("state", "words"), [("bytes", "ran out of room"), ("files", "as many")])
async def test_a_disk_that_is_full_at_the_end_is_the_reason(state: str, words: str) -> None:
    image = FakeImage()
    gauge = ImageGauge(cast("Image", image), LIMITS)
    image.state = state
    await gauge.last()
    verdict = gauge.verdict()
    assert verdict is not None
    assert verdict.reason is Reason.DISK_LIMIT
    assert words in verdict.message
    assert gauge.warnings() == ()


async def test_a_disk_that_was_full_and_is_not_any_more_is_a_warning() -> None:
    image, fake = FakeImage(), FakeAttempt()
    gauge = ImageGauge(cast("Image", image), LIMITS)
    image.state = "bytes"
    await gauge.poll(attempt_of(fake))
    image.state = None
    await gauge.last()
    assert (gauge.verdict(), fake.stops) == (None, [])
    assert gauge.warnings() == ("disk_limit: the disk of 100000 bytes was full for a while",)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    found = {"cpu_s": 0.0, "memory": 0, "exactly": 0}
    monkeypatch.setattr(
        usage, "of_processes", lambda _: usage.Used(found["cpu_s"], int(found["memory"]))
    )
    monkeypatch.setattr(usage, "memory_of", lambda _: found["exactly"])
    return found


async def test_softly_memory_is_counted_twice_before_it_is_a_reason(used: dict[str, float]) -> None:
    gauge, fake = ProcessGauge(LIMITS, 10.0, memory=True, cpu=True), FakeAttempt()
    used.update(memory=2000, exactly=900)
    await gauge.poll(attempt_of(fake))
    assert fake.stops == [], "most of it is shared"
    used.update(exactly=1001)
    await gauge.poll(attempt_of(fake))
    assert [stop[0] for stop in fake.stops] == [Reason.MEMORY_LIMIT]


async def test_softly_cpu_time_has_a_budget(used: dict[str, float]) -> None:
    gauge, fake = ProcessGauge(LIMITS, 10.0, memory=True, cpu=True), FakeAttempt()
    used.update(cpu_s=10.0)
    await gauge.poll(attempt_of(fake))
    assert fake.stops == []
    used.update(cpu_s=10.1)
    await gauge.poll(attempt_of(fake))
    ((reason, message, grace),) = fake.stops
    assert (reason, grace) == (Reason.CPU_LIMIT, True)
    assert "more than 10 s of CPU" in message


async def test_what_a_cgroup_limits_is_not_limited_again(used: dict[str, float]) -> None:
    used.update(memory=2000, exactly=2000, cpu_s=99.0)
    fake = FakeAttempt()
    await ProcessGauge(LIMITS, 10.0, memory=False, cpu=False).poll(attempt_of(fake))
    assert fake.stops == []


def directory_gauge(
    folder: Path, clock: SimClock, free: int = 1 << 40, most: int = 10
) -> DirectoryGauge:
    fd = os.open(folder, os.O_RDONLY)
    device = os.fstat(fd).st_dev
    hurry = threading.Event()
    return DirectoryGauge(fd, device, LIMITS, most, clock, lambda: free, 1 << 20, hurry)


async def test_softly_a_directory_is_walked(tmp_path: Path) -> None:
    gauge, fake = directory_gauge(tmp_path, SimClock()), FakeAttempt()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_bytes(os.urandom(60_000))
    await gauge.poll(attempt_of(fake))
    assert fake.stops == []
    (tmp_path / "a" / "g").write_bytes(os.urandom(60_000))
    await gauge.poll(attempt_of(fake))
    ((reason, message, grace),) = fake.stops
    assert (reason, grace) == (Reason.DISK_LIMIT, False)
    assert "its disk limit is 100000" in message


async def test_softly_files_are_counted(tmp_path: Path) -> None:
    gauge, fake = directory_gauge(tmp_path, SimClock()), FakeAttempt()
    for i in range(11):
        (tmp_path / str(i)).write_bytes(b"")
    await gauge.poll(attempt_of(fake))
    assert "more than 10 files" in fake.stops[0][1]


async def test_what_was_written_after_the_last_look_is_found_at_the_end(tmp_path: Path) -> None:
    gauge = directory_gauge(tmp_path, SimClock())
    (tmp_path / "f").write_bytes(os.urandom(120_000))
    assert await gauge.last() is True
    verdict = gauge.verdict()
    assert verdict is not None
    assert verdict.reason is Reason.DISK_LIMIT


async def test_a_disk_of_the_host_that_runs_full_ends_the_job_without_blaming_it(
    tmp_path: Path,
) -> None:
    gauge, fake = directory_gauge(tmp_path, SimClock(), free=1000), FakeAttempt()
    await gauge.poll(attempt_of(fake))
    assert [stop[0] for stop in fake.stops] == [Reason.AGENT_ERROR]


def test_hard_links_and_sparse_files_take_what_they_take(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(40_960))
    os.link(tmp_path / "f", tmp_path / "g")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    fd = os.open(tmp_path, os.O_RDONLY)
    stored = usage.of_directory(fd, 100)
    os.close(fd)
    assert stored.entries == 3
    assert 40_960 <= stored.bytes < 80_000


def test_a_tree_too_deep_to_walk_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "DEEPEST", 3)
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    fd = os.open(tmp_path, os.O_RDONLY)
    assert usage.of_directory(fd, 100).too_deep
    os.close(fd)


def test_a_walk_can_be_hurried(tmp_path: Path) -> None:
    for i in range(600):
        (tmp_path / str(i)).write_bytes(b"")
    fd = os.open(tmp_path, os.O_RDONLY)
    assert usage.of_directory(fd, 10_000, lambda: True).entries == 256
    assert usage.of_directory(fd, 10_000, lambda: False).entries == 600
    os.close(fd)


def test_processes_are_added_up_from_proc() -> None:
    used = usage.of_processes(os.getpid())
    assert used.cpu_s > 0
    assert used.memory > 1 << 20
    assert usage.memory_of(os.getpid()) > 1 << 20
    assert usage.of_processes(2**22 + 1) == usage.Used(0.0, 0)
