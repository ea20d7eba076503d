"""Gauges that read what the kernel enforces and counts."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from client_agent.sandbox.kernel.cgroups import Cgroup
from client_agent.sandbox.kernel.disk_images import DiskImage
from client_agent.sandbox.limits.hard import (
    MIN_THROTTLED_PERIODS,
    CgroupGauge,
    HostDiskGauge,
    ImageGauge,
)
from client_agent.sandbox.limits.meter import EndCause
from shared.wire import Limits, Reason
from tests.kit.fake_attempt import FakeAttempt, attempt_of
from tests.kit.real_sandbox import turns

LIMITS = Limits(cpus=0.5, memory=1000, pids=7, disk=100_000)


class FakeGroup:
    kills = refused = waits = 0
    met = True

    def at_memory_limit(self) -> bool:
        return self.met

    def throttled(self) -> int:
        return self.waits

    def oom_kills(self) -> int:
        return self.kills

    def refused_forks(self) -> int:
        return self.refused

    def cpu_s(self) -> float | None:
        return 1.5

    def peak_memory(self) -> int | None:
        return 999


async def test_a_kill_because_the_host_lacked_memory_is_not_the_jobs_limit() -> None:
    group, fake = FakeGroup(), FakeAttempt()
    gauge = CgroupGauge(cast("Cgroup", group), LIMITS)
    group.kills, group.met = 1, False
    await gauge.poll(attempt_of(fake))
    assert [reason for reason, _, _ in fake.stops] == [Reason.AGENT_ERROR]
    await gauge.read_final()
    end_cause = gauge.end_cause()
    assert end_cause is not None
    assert end_cause.reason is Reason.AGENT_ERROR


async def test_a_kill_for_memory_ends_the_rest_of_the_job() -> None:
    group, fake = FakeGroup(), FakeAttempt()
    gauge = CgroupGauge(cast("Cgroup", group), LIMITS)
    await gauge.poll(attempt_of(fake))
    assert fake.stops == []
    group.kills = 1
    await gauge.poll(attempt_of(fake))
    message = "the job needed more than its 1000 B of memory"
    assert fake.stops == [(Reason.MEMORY_LIMIT, message, False)]
    await gauge.read_final()
    assert gauge.end_cause() == EndCause(Reason.MEMORY_LIMIT, message)
    assert (gauge.cpu_s, gauge.peak_memory) == (1.5, 999)


@pytest.mark.parametrize(("times", "words"), [(1, "once"), (5, "5 times")])
async def test_refused_processes_are_a_warning(times: int, words: str) -> None:
    group = FakeGroup()
    group.refused = times
    gauge = CgroupGauge(cast("Cgroup", group), LIMITS)
    await gauge.read_final()
    assert gauge.end_cause() is None
    (warning,) = gauge.warnings()
    assert warning.startswith(f"pids_limit: {words} a process or thread was refused")


async def test_a_job_that_was_throttled_often_gets_a_warning() -> None:
    group = FakeGroup()
    gauge = CgroupGauge(cast("Cgroup", group), LIMITS)
    group.waits = MIN_THROTTLED_PERIODS - 1
    await gauge.read_final()
    assert list(gauge.warnings()) == []
    group.waits = MIN_THROTTLED_PERIODS
    await gauge.read_final()
    (warning,) = gauge.warnings()
    assert warning.startswith("cpu_limit: 10 times it had used its 0.5 CPUs up")
    assert gauge.end_cause() is None


class FakeImage:
    state: str | None = None

    def full(self) -> str | None:
        return self.state


@pytest.mark.parametrize(("state", "words"), [("bytes", "ran out of room"), ("files", "as many")])
async def test_a_disk_that_is_full_at_the_end_is_the_reason(state: str, words: str) -> None:
    image = FakeImage()
    gauge = ImageGauge(cast("DiskImage", image), LIMITS)
    image.state = state
    await gauge.read_final()
    end_cause = gauge.end_cause()
    assert end_cause is not None
    assert end_cause.reason is Reason.DISK_LIMIT
    assert words in end_cause.message
    assert gauge.warnings() == ()


async def test_a_disk_that_was_full_and_is_not_any_more_is_a_warning() -> None:
    image, fake = FakeImage(), FakeAttempt()
    gauge = ImageGauge(cast("DiskImage", image), LIMITS)
    image.state = "bytes"
    await gauge.poll(attempt_of(fake))
    image.state = None
    await gauge.read_final()
    assert (gauge.end_cause(), fake.stops) == (None, [])
    assert gauge.warnings() == ("disk_limit: the disk of 97.7 KiB was full for a while",)


async def test_a_full_disk_of_the_host_ends_the_job_with_an_agent_error() -> None:
    free = iter([1001, 1000, 999])
    gauge, fake = HostDiskGauge(lambda: next(free), 1000), FakeAttempt()
    await gauge.poll(attempt_of(fake))
    await gauge.poll(attempt_of(fake))
    assert fake.stops == []
    await gauge.poll(attempt_of(fake))
    assert [stop[0] for stop in fake.stops] == [Reason.AGENT_ERROR]
    await gauge.read_final()
    assert gauge.end_cause() is None
    assert [warning.partition(":")[0] for warning in gauge.warnings()] == ["agent_disk"]


@pytest.mark.parametrize(("free", "warnings"), [(999, ["agent_disk"]), (1000, [])])
async def test_a_job_too_short_for_a_poll_gets_the_warning_about_the_hosts_disk(
    free: int, warnings: list[str]
) -> None:
    gauge = HostDiskGauge(lambda: free, 1000)
    await gauge.read_final()
    assert [warning.partition(":")[0] for warning in gauge.warnings()] == warnings


async def test_a_disk_of_the_host_that_hangs_does_not_block_the_event_loop() -> None:
    answer = threading.Event()
    gauge = HostDiskGauge(lambda: answer.wait(60) or 0, -1)
    polling = asyncio.create_task(gauge.poll(attempt_of(FakeAttempt())))
    await turns(5)
    assert not polling.done()
    answer.set()
    await polling
