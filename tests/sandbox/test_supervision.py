"""The end of an attempt without a sandbox, and pidfds, which refer to the right process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from client_agent.sandbox.base import Ended, Launch
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.limits.meter import Meter
from client_agent.sandbox.process.log_capture import LogCapture
from client_agent.sandbox.process.supervisor import SpawnedProcesses, SupervisedProcess
from shared.wire import Reason
from tests.kit.clock import SimClock
from tests.kit.real_sandbox import turns

DEATH_S = 10.0
NOBODY = 2**22 + 1


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


class Running:
    """An attempt without a sandbox, whose process the test ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.clock, self.process = SimClock(), process
        self.captures = FakeCapture(), FakeCapture()
        outer, init = os.pidfd_open(process.pid), os.pidfd_open(process.pid)
        out, err = (cast("LogCapture", capture) for capture in self.captures)
        spawned = SpawnedProcesses(
            process, outer, pidfd.watch(outer), process.pid, init, -1, None, out, err
        )
        launch = Launch(["x"], {}, 1000.0, 100.0, Path("out"), Path("err"))
        meter = Meter([], self.clock, 0.5, threading.Event())
        self.supervised = SupervisedProcess(spawned, launch, meter, self.clock, DEATH_S)

    async def dies(self) -> None:
        fd = os.pidfd_open(self.process.pid)
        dead = pidfd.watch(fd)
        os.kill(self.process.pid, signal.SIGKILL)  # Popen.kill might reap it
        await dead
        pidfd.close(fd)
        await turns(3)

    async def ends(self) -> Ended:
        for capture in self.captures:
            capture.stop()
        return await self.supervised.wait()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    started = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    yield Running(started)
    started.kill()
    started.wait()


async def test_a_process_that_dies_at_the_last_moment_is_certainly_dead(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has to be waited for after it has a time of its own."""
    monkeypatch.setattr(pidfd, "kill", lambda *_: None)
    running.supervised.stop(Reason.TIMEOUT, "too long", grace=False)
    await running.clock.advance(DEATH_S - 0.1)
    await running.dies()
    await running.clock.advance(DEATH_S - 0.1)  # the pipes are slow, too
    ended = await running.ends()
    assert (ended.certain, ended.reason) == (True, Reason.TIMEOUT)


async def test_pipes_that_never_end_make_the_end_uncertain(running: Running) -> None:
    await running.dies()
    await running.clock.advance(DEATH_S + 0.1)
    assert not (await running.supervised.wait()).certain


async def test_a_repeated_report_of_a_gauge_is_one_warning(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pidfd, "kill", lambda *_: None)
    running.supervised.stop(Reason.TIMEOUT, "too long")
    for size in range(5):
        running.supervised.stop(Reason.DISK_LIMIT, f"the job stored {size} MiB")
    running.supervised.stop(Reason.SHUTDOWN, "the agent leaves")
    await running.dies()
    ended = await running.ends()
    assert ended.reason is Reason.TIMEOUT
    assert ended.warnings == ("the job stored 0 MiB", "the agent leaves")


# ---------------------------------------------------------------- pidfds


def test_a_process_is_opened_by_its_parent_only() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        fd = pidfd.open_child(child.pid, os.getpid())
        assert fd is not None
        os.close(fd)
        assert pidfd.open_child(child.pid, os.getppid()) is None
        assert pidfd.open_child(NOBODY, os.getpid()) is None
        assert pidfd.descendants(NOBODY) == []
        child.kill()


@pytest.mark.parametrize(
    ("lists", "killed"),
    [
        (["12", "12"], "12"),
        (["12", "1"], "1"),  # the second died, and its pid may be used again
        (["1", "12"], "1"),
        (["", ""], ""),
    ],
)
def test_only_processes_that_are_still_listed_are_killed(lists: list[str], killed: str) -> None:
    sleepers = {n: subprocess.Popen(["sleep", "60"], start_new_session=True) for n in "12"}
    try:
        turns = iter(lists)
        # a process of another pid namespace is shown as 0: that would be a signal to ourselves
        pidfd.kill_listed(lambda: [0, *(sleepers[n].pid for n in next(turns))])
        dead = {n for n in killed if sleepers[n].wait(10) == -signal.SIGKILL}
        assert dead == set(killed)
        assert {n for n, one in sleepers.items() if one.poll() is None} == set("12") - dead
    finally:
        for one in sleepers.values():
            one.kill()
            one.wait()


async def test_closing_one_descriptor_ends_no_watch_of_the_next_with_its_number() -> None:
    first, second = (subprocess.Popen(["sleep", "60"]) for _ in range(2))  # noqa: ASYNC220
    fd = os.pidfd_open(first.pid)
    dead = pidfd.watch(fd)
    dead.cancel()
    pidfd.close(fd)
    again = os.pidfd_open(second.pid)
    assert again == fd
    watched = pidfd.watch(again)
    await turns(3)  # whatever the first still had to do
    assert not watched.done()
    pidfd.kill(again)
    await watched
    assert second.wait() == -signal.SIGKILL
    pidfd.kill(again)  # of a dead process: no error
    pidfd.close(again)
    first.kill()
    first.wait()


def test_odd_names_do_not_confuse_the_reader_of_stat() -> None:
    program = "open('/proc/self/comm', 'w').write('x) R 1 1 ('); print(1, flush=True); input()"
    words, pipe = ["python3", "-c", program], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        fields = pidfd.stat_fields(process.pid)
        process.communicate(b"\n")
    assert fields is not None
    assert int(fields[1]) == os.getpid()
