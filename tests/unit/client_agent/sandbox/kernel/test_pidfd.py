"""Pidfds refer to the right process, even if a pid was used again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from client_agent.sandbox.kernel import pidfd
from tests.kit.real_sandbox import turns


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A shell, and the sleep that it waits for."""
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    yield shell, child
    for pid in (child, shell.pid):
        os.kill(pid, signal.SIGKILL)
    shell.wait()
    shell.stdout.close()


Family = tuple[subprocess.Popen[bytes], int]


def test_a_child_is_opened_by_its_parent_only(family: Family) -> None:
    shell, child = family
    fd = pidfd.open_child(child, shell.pid)
    assert fd is not None
    os.close(fd)
    assert pidfd.open_child(child, os.getpid()) is None
    assert pidfd.open_child(2**22 + 1, shell.pid) is None


def test_a_process_is_opened_by_its_start_time_only(family: Family) -> None:
    shell, _ = family
    fields = pidfd.stat_fields(shell.pid)
    assert fields is not None
    fd = pidfd.open_if_started_at(shell.pid, fields[19])
    assert fd is not None
    os.close(fd)
    assert pidfd.open_if_started_at(shell.pid, str(int(fields[19]) + 1)) is None
    assert pidfd.open_if_started_at(2**22 + 1, fields[19]) is None


def test_descendants_are_all_below_and_not_the_top(family: Family) -> None:
    shell, child = family
    assert pidfd.descendants(shell.pid) == [child]
    assert {shell.pid, child} <= set(pidfd.descendants(os.getpid()))
    assert pidfd.descendants(2**22 + 1) == []


def test_signals_reach_descendants_and_not_the_top(family: Family) -> None:
    shell, _ = family
    assert pidfd.signal_descendants(shell.pid, signal.SIGSTOP, signal.SIGCONT) == 1
    fields = pidfd.stat_fields(shell.pid)
    assert fields is not None
    assert fields[0] in "SR"


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


async def test_a_watch_ends_with_the_process_and_leaves_the_descriptor_open() -> None:
    process = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220  # its pid is what is tested
    fd = os.pidfd_open(process.pid)
    dead = pidfd.watch(fd)
    assert not dead.done()
    pidfd.kill(fd)
    await dead
    assert process.wait() == -signal.SIGKILL
    pidfd.kill(fd)  # of a dead process: no error
    pidfd.close(fd)


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
    second.kill()
    await watched
    pidfd.close(again)
    first.kill()
    for process in (first, second):
        process.wait()


def test_odd_names_do_not_confuse_the_reader_of_stat() -> None:
    program = "open('/proc/self/comm', 'w').write('x) R 1 1 ('); print(1, flush=True); input()"
    process = subprocess.Popen(
        ["python3", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    fields = pidfd.stat_fields(process.pid)
    process.communicate(b"\n")
    assert fields is not None
    assert int(fields[1]) == os.getpid()
