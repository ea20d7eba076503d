"""Gauges: what is read of the kernel's counters or sampled, when, and what a reading means. Logs:
pipes are read to their end, and what is stored is limited."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from client_agent.sandbox.base import Process
from client_agent.sandbox.limits import usage
from client_agent.sandbox.limits.hard import MIN_THROTTLED_PERIODS, CgroupGauge, HostDiskGauge
from client_agent.sandbox.limits.meter import FINAL_READ_TRIES, Gauge, Meter
from client_agent.sandbox.limits.soft import DirectoryGauge, ProcessGauge, SampleThrottle
from client_agent.sandbox.process import log_capture
from client_agent.sandbox.process.log_capture import (
    FEWER_BYTES,
    MAX_LINES,
    MAX_SMALL_READS,
    MAX_UNWRITTEN,
    TAIL_SIZE,
    LogCapture,
    LogSettings,
)
from shared.wire import Limits, Reason
from tests.agent.agent_packing import opened
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.waiting import turns, until

LIMITS = Limits(cpus=0.5, memory=1000, pids=7, disk=100_000)
COUNTERS = ["oom_kills", "at_memory_limit", "refused_forks", "throttled", "cpu_s", "peak_memory"]


async def stops(gauge: Gauge, pid: int = -1) -> list[Reason | None]:
    """Why a look at the gauge stops the attempt."""
    reasons = list[Reason | None]()
    attempt = SimpleNamespace(pid=pid, stop=lambda reason, *_, **__: reasons.append(reason))
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
async def test_what_the_counters_of_a_cgroup_mean(counters, reason, warning) -> None:
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


def directory_gauge(fd: int) -> DirectoryGauge:
    return DirectoryGauge(fd, LIMITS, 10, SimClock(), threading.Event())


async def test_files_written_after_the_last_look_count_at_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as fd:
        gauge = directory_gauge(fd)
        assert await stops(gauge) == []
        (tmp_path / "f").write_bytes(os.urandom(120_000))
        assert (await at_the_end(gauge))[0] is Reason.DISK_LIMIT


def test_a_walk_counts_blocks_and_has_an_end(tmp_path, monkeypatch) -> None:
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
async def test_slow_samples_do_not_block_the_event_loop(monkeypatch, tmp_path, name) -> None:
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


@each(
    "fails, clean, certain, lasts",
    [(0, False, False, 1), (2, False, False, 3), (FINAL_READ_TRIES, True, True, FINAL_READ_TRIES)],
)
async def test_gauges_are_read_at_the_interval_and_at_the_end_whatever_fails(
    fails: int, clean: bool, certain: bool, lasts: int
) -> None:
    """A last reading that fails is repeated. One gauge that is not certain makes the end uncertain;
    one that cannot be read is a warning."""
    first, second, clock = Counting(), Counting(), SimClock()
    meter = Meter([first, second], clock, 0.5, threading.Event())
    meter.start(cast("Process", None))
    first.fails = 2
    await clock.advance(1.6)
    assert [(one.polled, one.lasts) for one in (first, second)] == [(3, 0), (3, 0)]
    first.fails, first.clean = fails, clean
    stopping = asyncio.create_task(meter.stop())
    await clock.advance(0.5 * FINAL_READ_TRIES)
    assert await stopping is certain
    assert [(one.polled, one.lasts) for one in (first, second)] == [(3, lasts), (3, 1)]
    error = "limits: what it used at its end is not known: [Errno 24] Too many open files"
    assert meter.warnings() == [error] * (fails == FINAL_READ_TRIES)
    await clock.advance(5.0)
    assert (first.polled, clock.sleeping) == (3, 0)


_THREADS = ThreadPoolExecutor(1)


class HangingDisk(Executor):
    """Writes nothing until ``answer`` is called."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, lambda: work(*args, **kwargs)))
        return future

    async def answer(self) -> None:
        held, self.held = self.held, []
        for future, work in held:
            future.set_result(work())
        await turns(3)


class Piped:
    """A capture, the other end of its pipe, and who listens.

    Args:
        lines: what the listener says of how many lines it had to look at.
    """

    def __init__(
        self,
        path: Path,
        limit: int = 1 << 20,
        hard: int = 1 << 40,
        *,
        lines: int = 0,
        threads: Executor = _THREADS,
    ) -> None:
        source, self.write = os.pipe()
        for fd in (source, self.write):
            os.set_blocking(fd, False)
        self.path, self.lines, self.pieces, self.floods = path, lines, list[bytes](), list[str]()
        self.stored = self.resumed = 0
        settings = LogSettings(limit, hard, self.floods.append, threads, self)
        self.capture = LogCapture(source, path, "stderr", settings)

    def on_output(self, _: str, data: bytes) -> int:
        self.pieces += [data] * bool(data)
        self.resumed += not data
        return self.lines if data else 0

    def on_stored(self, _: str) -> None:
        self.stored += 1

    async def feed(self, data: bytes) -> None:
        target = self.capture.bytes_read + len(data)
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.write, view) :]
            except BlockingIOError:
                await turns()
        await until(lambda: self.capture.bytes_read >= target)

    async def end(self) -> bytes:
        os.close(self.write)
        await self.capture.closed
        return self.path.read_bytes()


TAIL = 300_000 - TAIL_SIZE


@each(
    "limit, size, start, tail",
    [
        (300_000, 299_999, 299_999, 0),
        (300_000, 300_000, 300_000, 0),
        (300_000, 300_001, TAIL, TAIL_SIZE),
        (300_000, 1_000_000, TAIL, TAIL_SIZE),
        (300_000, TAIL, TAIL, 0),
        (10, 16, 10, 0),  # of a small one the start only
    ],
)
async def test_all_is_stored_up_to_the_limit_and_beyond_it_start_and_end(
    tmp_path_factory: pytest.TempPathFactory, limit: int, size: int, start: int, tail: int
) -> None:
    piped, data = Piped(tmp_path_factory.mktemp("logs") / "log", limit), os.urandom(size)
    await piped.feed(data)
    stored, missing = await piped.end(), size - start - tail
    assert b"".join(piped.pieces) == data
    assert piped.stored > 0
    assert piped.capture.truncated == (missing > 0)
    marker = b"\n[ferryman: %d bytes are left out here]\n" % missing if missing else b""
    assert stored == data[:start] + marker + data[size - tail :]


async def test_a_line_without_end_takes_no_memory_and_the_tail_is_the_last_lines(tmp_path) -> None:
    """That there was too much is said once."""
    piped = Piped(tmp_path / "log", 1000, 5000)
    await piped.feed(b"a" * 5000)
    assert piped.floods == []
    await piped.feed(b"a" * 2_000_000)
    held = [v for v in vars(piped.capture).values() if isinstance(v, (bytes, bytearray))]
    assert sum(map(len, held)) <= TAIL_SIZE
    await piped.feed(b"".join(b"line %d\n" % i for i in range(5000)))
    assert piped.capture.tail(2) == "line 4998\nline 4999"
    await piped.feed(b"\xff\xfe bad")
    assert piped.capture.tail(1) == "\ufffd\ufffd bad"
    assert piped.floods == ["stderr"]
    await piped.end()


async def test_a_full_disk_does_not_stop_reading(tmp_path, monkeypatch) -> None:
    real = os.open
    monkeypatch.setattr(os, "open", lambda p, f, m=0o777: real("/dev/full", os.O_WRONLY))
    piped = Piped(tmp_path / "log")
    monkeypatch.undo()
    await piped.feed(b"x" * 500_000)
    os.close(piped.write)
    await piped.capture.closed
    assert piped.capture.bytes_read == 500_000
    assert piped.capture.store_error == "No space left on device"


async def test_stopping_early_closes_everything_and_no_file_is_overwritten(tmp_path: Path) -> None:
    piped = Piped(tmp_path / "log")
    await piped.feed(b"x")
    piped.capture.stop()
    piped.capture.stop()
    await piped.capture.closed
    with pytest.raises(BrokenPipeError):
        os.write(piped.write, b"y")
    os.close(piped.write)
    with pytest.raises(FileExistsError):
        Piped(tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == b"x"


async def test_single_bytes_are_read_in_larger_pieces_a_little_later(tmp_path, monkeypatch) -> None:
    """Large pieces are read as they come."""
    monkeypatch.setattr(log_capture, "PAUSE_S", 3600.0)
    piped = Piped(tmp_path / "log")
    for _ in range(2 * MAX_SMALL_READS):
        await piped.feed(b"x" * 8192)
        assert not piped.capture.paused
    piped.pieces.clear()
    for _ in range(MAX_SMALL_READS):
        assert not piped.capture.paused
        await piped.feed(b".")
    for _ in range(1000):
        os.write(piped.write, b".")
        await turns()
    assert piped.capture.paused
    piped.capture.finish()
    await piped.end()
    assert [len(piece) for piece in piped.pieces] == [*[1] * MAX_SMALL_READS, 1000]


async def test_many_lines_for_the_listener_are_read_more_slowly_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_capture, "PAUSE_S", 0.0)
    monkeypatch.setattr(log_capture, "LINE_PAUSE_S", 3600.0)
    piped = Piped(tmp_path / "log", lines=10 * MAX_LINES)
    for size in (60_000, 5_000, 9_000):
        os.write(piped.write, b"x" * size)
        await turns(5)
        assert (piped.capture.paused, piped.capture.bytes_read) == (True, 60_000)
    piped.capture.finish()
    await piped.end()
    sizes = [len(piece) for piece in piped.pieces]
    assert sum(sizes) == 74_000
    assert max(sizes[1:]) <= FEWER_BYTES


async def test_a_disk_that_hangs_delays_its_own_job_only(tmp_path: Path) -> None:
    """And that one by a bounded amount of memory, and loses nothing. Who listens is told when bytes
    are in the file, and that reading had paused: what was not read is no silence."""
    disk = HangingDisk()
    piped, sent = Piped(tmp_path / "log", threads=disk), 0
    await piped.feed(b"hello")
    assert (piped.stored, piped.path.read_bytes()) == (0, b"")
    await disk.answer()
    assert (piped.stored, piped.path.read_bytes()) == (1, b"hello")
    for _ in range(500):  # as much as the pipe takes, in turns of a loop that nothing blocks
        with contextlib.suppress(BlockingIOError):
            sent += os.write(piped.write, b"x" * 4096)
        await turns()
    assert sent < MAX_UNWRITTEN + 4 * (1 << 16)
    assert (piped.capture.paused, piped.resumed) == (True, 0)
    await disk.answer()
    assert (piped.capture.paused, piped.resumed) == (False, 1)
    os.close(piped.write)
    for _ in range(100):
        await disk.answer()
    assert (piped.capture.closed.done(), piped.capture.paused) == (True, False)
    assert piped.path.read_bytes() == b"hello" + b"x" * sent
