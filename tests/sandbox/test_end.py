"""Starts that fail, hang or are cancelled, and ends: all is dead, and nothing is left behind."""

import asyncio
import ctypes
import errno
import os
import resource
import signal
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import Ended
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.kernel.work_folders import WorkFolders
from shared.wire import Reason
from tests.kit.child import Who, child_test, dead_within, descriptors, in_child, processes_of
from tests.kit.each import each
from tests.kit.waiting import turns, until
from tests.sandbox.conftest import use_bwrap
from tests.sandbox.real_sandbox import (
    MIB,
    ON_DISK,
    SETTINGS,
    SMALL,
    TOPS,
    Job,
    Sandbox,
    Sandboxes,
    SandboxHost,
    Started,
    alone,
    bash,
    opened,
    refusal,
    running,
    start,
)

HELLO = bash("echo hello\n")

# ---------------------------------------------------------------- starts


def test_a_sandbox_that_does_not_start_quotes_bubblewrap(who: Who) -> None:
    job = replace(HELLO, read_only=((Path("/no/such/folder"), "/opt/x"),))
    said = "did not start (exit code 1): bwrap: Can't find source path /no/such/folder"
    assert said in refusal(job, who)


def test_a_limit_that_cannot_be_set_is_a_broken_sandbox(agent: tuple[Who, type[Sandbox]]) -> None:
    """The agent's own limit of open files is lower than the job's."""
    who, backend = agent

    def lower(_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))

    said = refusal(replace(HELLO, backend=backend), who, lower)
    assert "(exit code 124)" in said
    assert "ulimit -n 1024 cannot be set: see the hard limits of the agent" in said


SHORT = replace(HELLO, settings=replace(SETTINGS, start_timeout_s=0.3, death_timeout_s=0.4))


def test_a_sandbox_that_is_stopped_at_its_start_is_killed_and_reaped(who: Who) -> None:
    """bwrap is killed with it, so its init becomes the agent's child."""

    def stop_inits(_: object) -> None:
        real = pidfd.open_child

        def stopped(pid: int, parent: int) -> int | None:
            fd = real(pid, parent)
            os.kill(pid, signal.SIGSTOP)
            return fd

        pidfd.open_child = stopped
        pidfd.has_seccomp_filter = lambda pid: False  # however far it had come

    assert "not up within" in refusal(SHORT, who, stop_inits)


KILLED_EARLY = """#!/usr/bin/python3
import ctypes, os, sys, time
args = os.pread(int(sys.argv[2]), 1 << 20, 0).split(bytes(1))
status = int(args[args.index(b"--json-status-fd") + 1])
assert ctypes.CDLL(None).unshare(0x30000000) == 0
pid = os.fork()
if pid == 0:
    time.sleep(0.1)  # its parent is dead by now
    if {reported}:
        os.write(status, b'{{"child-pid": %s}}\\n' % os.readlink("/proc/self").encode())
    os.execv("/usr/bin/sleep", ["sleep", "{seconds}"])
os.kill(os.getpid(), 9)
"""


@each(
    "program, says",
    [
        ("#!/bin/sh\nexec sleep 60\n", ["not up within 0.3 s"]),
        *(
            (KILLED_EARLY.format(reported=r, seconds=s), ["exit code -9", "not up within"])
            for r, s in ((True, 60), (False, 60), (True, 0))
        ),
    ],
)
def test_a_chain_that_hangs_or_is_killed_early_leaves_no_orphan(program, says, who) -> None:
    """Whether or not bwrap reported its child. A child that ends leaves no zombie."""
    said = refusal(SHORT, who, lambda box: use_bwrap(box, program))
    assert any(words in said for words in says), said


@child_test
async def test_a_shortage_when_the_chain_is_spawned_is_no_broken_sandbox(home, who) -> None:
    def popen(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    async with opened(HELLO, home) as sandbox:
        await sandbox.self_test()
        before = descriptors()
        subprocess.Popen = popen  # type: ignore[misc, assignment]
        with pytest.raises(OSError, match="Too many open files"):
            await start(sandbox, HELLO, home)
        assert descriptors() <= before


async def cancel_starts(sandboxes: Sandboxes) -> tuple[list[str], int]:
    sandbox = await sandboxes.of(HELLO)
    before, uid = descriptors(), os.geteuid()
    for i in range(8):
        task = asyncio.create_task(start(sandbox, HELLO, sandboxes.home, sandboxes.name()))
        await turns(i * i * 40)  # anywhere in the middle
        task.cancel()
        try:
            started = await task
        except asyncio.CancelledError:
            continue
        uid = started.uid
        await started.killed()
        await started.workspace.destroy()
    return processes_of(uid) if uid else [], descriptors() - before


async def stop_early(sandboxes: Sandboxes) -> list[tuple[bool, Reason | None, list[str]]]:
    seen = []
    for i in range(12):
        async with running(sandboxes, HELLO) as started:
            if i % 2:
                started.process.go()
            ended = await started.killed()
            seen.append((ended.certain, ended.reason, processes_of(started.uid)))
    return seen


async def what_there_is(sandboxes: Sandboxes) -> tuple[int, list[int], int]:
    return descriptors(), pidfd.descendants(os.getpid()), len(asyncio.all_tasks())


def test_cancelled_starts_early_stops_and_ended_jobs_leave_nothing(host: SandboxHost) -> None:
    host.run(HELLO)  # constants and threads are made once
    before = host.do(what_there_is)
    assert host.do(cancel_starts) == ([], 0)
    assert host.do(stop_early) == [(True, None, [])] * 12
    for _ in range(5):
        host.run(HELLO)
    assert host.do(what_there_is) == (before[0], [], 1)


@child_test
async def test_chains_are_spawned_on_the_loops_thread_without_options_that_fork(home, who) -> None:
    """A parent-death signal is that of the thread that spawned; a fork of a large agent is slow."""
    seen: list[dict[str, Any]] = []
    real = subprocess.Popen

    class Spy(real):  # type: ignore[misc, valid-type]
        def __init__(self, argv: Any, **given: Any) -> None:
            seen.append({**given, "thread": threading.current_thread()})
            super().__init__(argv, **given)

    subprocess.Popen = Spy  # type: ignore[assignment, misc]
    await alone(HELLO, home)
    chains = [given for given in seen if given.get("start_new_session")]
    assert len(chains) == 2, "the self-test's, and the job's"
    forking = {"preexec_fn", "user", "group", "extra_groups", "umask"}
    for given in chains:
        assert (given["thread"], given["env"]) == (threading.main_thread(), {})
        assert [name for name in forking & given.keys() if given[name] is not None] == []


# ---------------------------------------------------------------- death for certain

MANY_PROCESSES = """
import mmap, os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = mmap.mmap(-1, 96 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 96 << 20, 4096): memory[at] = 1
for i in range(24):
    if os.fork() == 0:
        os.setsid(); os.closerange(0, 3); signal.pause()
os._exit(0)
"""
"""Processes that take a while to die, because they have much to give back."""


async def dead_at_the_end(started: Started) -> bool:
    """Whether the namespace's init is dead at the very moment at which the end is reported."""
    fd = os.pidfd_open(started.process.pid)
    await started.process.wait()
    dead = dead_within(fd, 0)
    os.close(fd)
    return dead


def test_all_processes_are_dead_when_the_end_is_reported(host: SandboxHost) -> None:
    limits = SMALL.model_copy(update={"pids": 120, "memory": 512 * MIB})
    bundle = {"run.sh": "python3 many.py; exit 0\n", "many.py": MANY_PROCESSES}
    outcome = host.run(Job(bundle, limits=limits, during=dead_at_the_end))
    assert (outcome.ended.exit_code, outcome.ended.certain) == (0, True)
    assert outcome.extra, "its init was alive"
    assert outcome.survivors == []


async def signalled(started: Started) -> tuple[int, set[int]]:
    """The outer bwrap, and to whom signals go until the end."""
    targets: set[int] = set()
    real, outer = signal.pidfd_send_signal, started.outer

    def noted(fd: int, *args: Any) -> None:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        targets.add(int(next(line.split()[1] for line in lines if line.startswith("Pid:"))))
        real(fd, *args)

    signal.pidfd_send_signal = noted
    try:
        await started.ends()
    finally:
        signal.pidfd_send_signal = real
    return outer, targets


def test_signals_go_to_the_jobs_processes_and_its_init_only(host: SandboxHost) -> None:
    script = "trap 'echo term >term' TERM; echo up; while :; do sleep 0.05; done\n"
    outcome = host.run(bash(script, over="up", grace_s=0.2, before_go=signalled))
    outer, targets = outcome.extra
    assert outcome.files["term"] == b"term\n"
    assert outer not in targets
    assert len(targets) >= 2


async def is_subreaper(_: Started) -> int:
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    return value.value


def test_orphans_of_a_chain_become_the_agents_children(host: SandboxHost) -> None:
    assert host.run(replace(HELLO, before_go=is_subreaper)).extra == 1


async def kill_outer(started: Started) -> None:
    os.kill(started.outer, signal.SIGKILL)


def test_a_sandbox_whose_outer_bwrap_is_killed_is_a_broken_sandbox(host: SandboxHost) -> None:
    """There is no exit code, and the agent did not kill it."""
    outcome = host.run(bash("sleep 30\n", during=kill_outer))
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.SANDBOX_ERROR, None)
    assert (outcome.ended.certain, outcome.survivors) == (True, [])


# ---------------------------------------------------------------- processes that do not die

UNDYING = bash("echo precious >file; echo up; sleep 60\n", over="up", grace_s=0.05)
"""As in uninterruptible sleep, on a slow disk: here the kill is taken away instead."""


def left_of(home: Path) -> list[str]:
    """What there is of an attempt: folders, cgroups, mounts; an idle image belongs to none."""
    agent = home / "agent"
    paths = [str(path) for top in ("work", "quarantine") for path in (agent / top).glob("*")]
    name = WorkFolders(agent, separate_uids=False).name
    paths += map(str, Path("/sys/fs/cgroup").glob(f"*/{name}/*/"))
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [*paths, *(line for line in mounts if f"/run/ferryman/{name}/attempt" in line)]


@asynccontextmanager
async def quarantined(sandbox: Sandbox, job: Job, home: Path) -> AsyncIterator[tuple[Ended, int]]:
    """The end of an attempt whose processes cannot be killed for that long, and its init."""
    real, pidfd.kill = pidfd.kill, lambda *_: None
    try:
        started = await start(sandbox, job, home)
        ended = await started.ends()
        await started.workspace.destroy()
        await turns(5)
        yield ended, os.pidfd_open(started.process.pid)
    finally:
        pidfd.kill = real


@pytest.mark.parametrize("settings", [SETTINGS, ON_DISK], ids=["images", "folders"])
def test_a_quarantined_attempt_is_removed_when_its_processes_are_dead(agent, settings) -> None:
    who, backend = agent
    job = replace(UNDYING, settings=replace(settings, death_timeout_s=0.1), backend=backend)

    async def undying(home: Path) -> None:
        async with opened(job, home) as sandbox:
            async with quarantined(sandbox, job, home) as (ended, init):
                assert (ended.certain, ended.reason) == (False, Reason.AGENT_ERROR)
                assert "could not be killed within 0.1 s" in ended.message
                assert any(path.endswith("/quarantine/attempt") for path in left_of(home))
            pidfd.kill(init)
            await until(lambda: not left_of(home))
            pool = sandbox.host.images
            assert pool is None or pool.take_idle(SMALL.disk) is not None, "its image is not back"

    in_child(undying, who)


@child_test
async def test_processes_that_do_not_die_keep_their_folder_until_the_next_start(home, who) -> None:
    job = replace(UNDYING, settings=replace(ON_DISK, death_timeout_s=0.1))
    async with opened(job, home) as sandbox, quarantined(sandbox, job, home) as (_, init):
        assert (home / "agent/quarantine/attempt/job/file").read_text() == "precious\n"
        assert not dead_within(init, 0)
    async with opened(job, home) as sandbox:
        await sandbox.clear()
    assert dead_within(init, 0)
    assert {path.name for path in (home / "agent").rglob("*")} <= TOPS
