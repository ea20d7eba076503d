"""Soft limits: what is sampled, how often, and when a job is ended."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.limits import usage
from client_agent.sandbox.limits.soft import DirectoryGauge, ProcessGauge, SampleThrottle
from shared.wire import Limits, Reason
from tests.kit.clock import SimClock
from tests.kit.fake_attempt import FakeAttempt, attempt_of

LIMITS = Limits(cpus=0.5, memory=1000, pids=7, disk=100_000)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    values = {"cpu_s": 0.0, "memory": 0, "exactly": 0}
    monkeypatch.setattr(
        usage, "process_usage", lambda _: usage.ProcessUsage(values["cpu_s"], int(values["memory"]))
    )
    monkeypatch.setattr(usage, "exact_memory", lambda *_: values["exactly"])
    monkeypatch.setattr(usage, "deleted_file_bytes", lambda *_: 0)
    return values


async def test_soft_memory_limits_are_checked_twice_before_the_job_is_ended(
    used: dict[str, float],
) -> None:
    gauge, fake = ProcessGauge(LIMITS, 10.0, SimClock(), memory=True, cpu=True), FakeAttempt()
    used.update(memory=2000, exactly=900)
    await gauge.poll(attempt_of(fake))
    assert fake.stops == [], "most of it is shared"
    used.update(exactly=1001)
    await gauge.poll(attempt_of(fake))
    assert [stop[0] for stop in fake.stops] == [Reason.MEMORY_LIMIT]


async def test_memory_above_the_limit_for_a_moment_does_not_end_the_job(
    used: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While processes end, their shared memory is counted several times."""
    counted = [1001, 999]
    monkeypatch.setattr(usage, "exact_memory", lambda *_: counted.pop(0))
    used.update(memory=2000)
    fake = FakeAttempt()
    await ProcessGauge(LIMITS, 10.0, SimClock(), memory=True, cpu=True).poll(attempt_of(fake))
    assert (fake.stops, counted) == ([], [])


async def test_soft_cpu_limits_are_a_budget_of_cpu_time(used: dict[str, float]) -> None:
    gauge, fake = ProcessGauge(LIMITS, 10.0, SimClock(), memory=True, cpu=True), FakeAttempt()
    used.update(cpu_s=10.0)
    await gauge.poll(attempt_of(fake))
    assert fake.stops == []
    used.update(cpu_s=10.1)
    await gauge.poll(attempt_of(fake))
    ((reason, message, grace),) = fake.stops
    assert (reason, grace) == (Reason.CPU_LIMIT, True)
    assert "more than 10 s of CPU" in message


async def test_a_limit_of_a_cgroup_is_not_sampled(used: dict[str, float]) -> None:
    used.update(memory=2000, exactly=2000, cpu_s=99.0)
    fake = FakeAttempt()
    await ProcessGauge(LIMITS, 10.0, SimClock(), memory=False, cpu=False).poll(attempt_of(fake))
    assert fake.stops == []


def directory_gauge(folder: Path, clock: SimClock, most: int = 10) -> DirectoryGauge:
    fd = os.open(folder, os.O_RDONLY)
    return DirectoryGauge(fd, LIMITS, most, clock, threading.Event())


async def test_soft_disk_limits_walk_the_directory(tmp_path: Path) -> None:
    gauge, fake = directory_gauge(tmp_path, SimClock()), FakeAttempt()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_bytes(os.urandom(60_000))
    await gauge.poll(attempt_of(fake))
    assert fake.stops == []
    (tmp_path / "a" / "g").write_bytes(os.urandom(60_000))
    await gauge.poll(attempt_of(fake))
    ((reason, message, grace),) = fake.stops
    assert (reason, grace) == (Reason.DISK_LIMIT, False)
    assert "its disk limit is 97.7 KiB" in message


async def test_soft_disk_limits_count_files(tmp_path: Path) -> None:
    gauge, fake = directory_gauge(tmp_path, SimClock()), FakeAttempt()
    for i in range(11):
        (tmp_path / str(i)).write_bytes(b"")
    await gauge.poll(attempt_of(fake))
    assert "more than 10 files" in fake.stops[0][1]


async def test_files_written_after_the_last_sample_count_at_the_end(tmp_path: Path) -> None:
    gauge = directory_gauge(tmp_path, SimClock())
    (tmp_path / "f").write_bytes(os.urandom(120_000))
    assert await gauge.read_final() is True
    end_cause = gauge.end_cause()
    assert end_cause is not None
    assert end_cause.reason is Reason.DISK_LIMIT


def test_hard_links_and_sparse_files_count_by_their_blocks(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(40_960))
    os.link(tmp_path / "f", tmp_path / "g")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    fd = os.open(tmp_path, os.O_RDONLY)
    stored = usage.directory_usage(fd, 100)
    os.close(fd)
    assert stored.entries == 3
    assert 40_960 <= stored.bytes < 80_000


def test_a_tree_too_deep_to_walk_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MAX_DEPTH", 3)
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    fd = os.open(tmp_path, os.O_RDONLY)
    assert usage.directory_usage(fd, 100).too_deep
    os.close(fd)


def test_a_walk_can_be_cancelled(tmp_path: Path) -> None:
    for i in range(600):
        (tmp_path / str(i)).write_bytes(b"")
    fd = os.open(tmp_path, os.O_RDONLY)
    assert usage.directory_usage(fd, 10_000, lambda: True).entries == 256
    assert usage.directory_usage(fd, 10_000, lambda: False).entries == 600
    os.close(fd)


def test_usage_of_processes_is_summed_from_proc() -> None:
    used = usage.process_usage(os.getpid())
    assert used.cpu_s > 0
    assert used.memory > 1 << 20
    assert usage.exact_memory(os.getpid(), 0) > 1 << 20
    assert usage.process_usage(2**22 + 1) == usage.ProcessUsage(0.0, 0)


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
    fake = FakeAttempt(os.getpid())  # more than the limit of 1000 bytes
    await ProcessGauge(LIMITS, 10.0, SimClock(), memory=True, cpu=True).poll(attempt_of(fake))
    await directory_gauge(tmp_path, SimClock()).poll(attempt_of(fake))
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


def test_files_in_memory_count_mapped_or_not() -> None:
    before = usage.deleted_file_bytes(os.getppid(), usage.memfd_device())
    fd = os.memfd_create("held")
    with mmap.mmap(-1, 4096):
        os.ftruncate(fd, 1 << 30)
        os.write(fd, bytes(3 << 20))
        # this process is a child of its parent; children of other tests are small
        held = usage.deleted_file_bytes(os.getppid(), usage.memfd_device()) - before
    os.close(fd)
    assert (3 << 20) - (1 << 19) <= held < 4 << 20
    assert usage.exact_memory(2**22 + 1, held) == held
