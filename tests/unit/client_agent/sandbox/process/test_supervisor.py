"""The end of an attempt: what is waited for, how long, and what is reported."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from client_agent.sandbox.base import Launch
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.limits.meter import Gauge, Meter
from client_agent.sandbox.process.log_capture import LogCapture
from client_agent.sandbox.process.supervisor import SpawnedProcesses, SupervisedProcess
from shared.wire import Reason
from tests.kit.clock import SimClock

LAUNCH = Launch(["x"], {}, 1000.0, 100.0, Path("out"), Path("err"))
DEATH_S = 10.0


class FakeCapture:
    """Of a stream that ends when the test says so."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.truncated, self.store_error, self.bytes_read = False, None, 0

    def tail(self, lines: int = 20) -> str:
        return ""

    def stop(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "60"])
    yield started
    started.kill()
    started.wait()


class Running:
    """An attempt without a sandbox, whose process the test ends."""

    def __init__(self, process: subprocess.Popen[bytes], *gauges: Gauge) -> None:
        self.clock, self.process = SimClock(), process
        self.captures = FakeCapture(), FakeCapture()
        outer, init = os.pidfd_open(process.pid), os.pidfd_open(process.pid)
        out, err = (cast("LogCapture", capture) for capture in self.captures)
        spawned = SpawnedProcesses(
            process, outer, pidfd.watch(outer), process.pid, init, -1, None, out, err
        )
        meter = Meter(gauges, self.clock, 0.5, threading.Event())
        self.supervised = SupervisedProcess(spawned, LAUNCH, meter, self.clock, DEATH_S)

    async def dies(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)  # Popen.kill might reap it
        while not self.supervised._init_dead.done():
            await asyncio.wait({self.supervised._init_dead})


async def test_a_process_that_dies_at_the_last_moment_is_certainly_dead(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has to be waited for after it has a time of its own."""
    monkeypatch.setattr(pidfd, "kill", lambda *_: None)
    running = Running(process)
    running.supervised.stop(Reason.TIMEOUT, "too long", grace=False)
    await running.clock.advance(DEATH_S - 0.1)
    await running.dies()
    await running.clock.advance(DEATH_S - 0.1)  # the pipes are slow, too
    for capture in running.captures:
        capture.stop()
    ended = await running.supervised.wait()
    assert (ended.certain, ended.reason) == (True, Reason.TIMEOUT)


async def test_pipes_that_never_end_make_the_end_uncertain(
    process: subprocess.Popen[bytes],
) -> None:
    running = Running(process)
    await running.dies()
    await running.clock.advance(DEATH_S + 0.1)
    assert not (await running.supervised.wait()).certain


async def test_a_repeated_report_of_a_gauge_is_one_warning(
    process: subprocess.Popen[bytes],
) -> None:
    running = Running(process)
    running.supervised._started_at = 0.0
    running.supervised.stop(Reason.TIMEOUT, "too long")
    for size in range(5):
        running.supervised.stop(Reason.DISK_LIMIT, f"the job stored {size} MiB")
    running.supervised.stop(Reason.SHUTDOWN, "the agent leaves")
    await running.dies()
    for capture in running.captures:
        capture.stop()
    ended = await running.supervised.wait()
    assert ended.reason is Reason.TIMEOUT
    assert ended.warnings == ("the job stored 0 MiB", "the agent leaves")
