"""Starts that fail, hang, are cancelled or succeed leave nothing behind."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import Ahead, SandboxBroken
from client_agent.sandbox.bubblewrap.backend import Bubblewrap, BubblewrapWorkspace
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.none import NoSandbox
from tests.kit.real_sandbox import (
    SETTINGS,
    SMALL,
    Job,
    Who,
    can,
    descriptors,
    in_child,
    opened,
    processes_of,
    start,
    turns,
)

HELLO = Job({"run.sh": "echo hello\n"})


def script(folder: Path, text: str) -> Path:
    """A program that every uid may run."""
    made = folder / "program"
    made.write_text("#!/bin/sh\n" + text)
    made.chmod(0o755)
    folder.chmod(0o755)
    return made


def test_a_sandbox_that_does_not_start_quotes_bubblewrap(who: Who) -> None:
    async def broken(home: Path) -> tuple[str, list[str], list[str]]:
        job = replace(HELLO, read_only=((Path("/no/such/folder"), "/opt/x"),))
        async with opened(job, home) as sandbox:
            with pytest.raises(SandboxBroken) as caught:
                await start(sandbox, job, home)
            alive = processes_of(
                sandbox.settings.uid_base if sandbox.separate_uids else os.geteuid()
            )
        return str(caught.value), alive, [p.name for p in (home / "agent/work").iterdir()]

    message, alive, left = in_child(lambda home: asyncio.run(broken(home)), who)
    assert "did not start (exit code 1): bwrap: Can't find source path /no/such/folder" in message
    assert alive == []
    assert left == []


@pytest.mark.parametrize(
    ("who", "backend"), [("root", Bubblewrap), ("user", Bubblewrap), ("root", NoSandbox)]
)
def test_a_limit_that_cannot_be_set_is_a_broken_sandbox(
    who: Who, backend: type[Bubblewrap] | type[NoSandbox]
) -> None:
    """The agent's own limit of open files is lower than the job's."""
    if not can(who):
        pytest.skip("not root: what holds for an agent that root starts is not proved")

    async def broken(home: Path) -> tuple[str, list[str]]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
        job = replace(HELLO, backend=backend)
        async with opened(job, home) as sandbox:
            with pytest.raises(SandboxBroken) as caught:
                await start(sandbox, job, home)
        return str(caught.value), [path.name for path in (home / "agent/work").iterdir()]

    message, left = in_child(lambda home: asyncio.run(broken(home)), who)
    assert "(exit code 124)" in message
    assert "ulimit -n 1024 cannot be set: see the hard limits of the agent" in message
    assert left == []


def test_a_chain_that_does_not_start_in_time_is_killed(who: Who, tmp_path: Path) -> None:
    async def hanging(home: Path) -> tuple[str, list[str]]:
        job = replace(HELLO, settings=replace(SETTINGS, start_timeout_s=0.3, death_timeout_s=0.4))
        slow = script(home, "exec sleep 60\n")
        async with opened(job, home) as sandbox:
            sandbox._tools = replace(sandbox.tools, bwrap=str(slow))  # type: ignore[union-attr]
            with pytest.raises(SandboxBroken) as caught:
                await start(sandbox, job, home)
            uid = sandbox.settings.uid_base if sandbox.separate_uids else os.geteuid()
            return str(caught.value), processes_of(uid)

    message, alive = in_child(lambda home: asyncio.run(hanging(home)), who)
    assert "not up within 0.3 s" in message
    assert alive == []


def test_a_sandbox_that_is_stopped_at_its_start_is_killed_and_reaped(who: Who) -> None:
    """bwrap is killed with it, so its init becomes the agent's child."""

    async def still(home: Path) -> list[int]:
        job = replace(HELLO, settings=replace(SETTINGS, start_timeout_s=0.3, death_timeout_s=0.4))
        real = pidfd.open_child

        def stopped(pid: int, parent: int) -> int | None:
            fd = real(pid, parent)
            os.kill(pid, signal.SIGSTOP)
            return fd

        def unfiltered(pid: int) -> bool | None:
            """However far it had come before it was stopped."""
            return False

        pidfd.open_child, pidfd.has_seccomp_filter = stopped, unfiltered
        async with opened(job, home) as sandbox:
            for i in range(2):
                with pytest.raises(SandboxBroken, match="not up within"):
                    await start(sandbox, job, home, f"a-{i}")
            return pidfd.descendants(os.getpid())

    assert in_child(lambda home: asyncio.run(still(home)), who) == []


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


@pytest.mark.parametrize(("reported", "seconds"), [(True, 60), (False, 60), (True, 0)])
def test_a_bwrap_that_is_killed_early_leaves_no_orphan(
    reported: bool, seconds: int, who: Who, tmp_path: Path
) -> None:
    """Whether or not bwrap reported its child. A child that ends leaves no zombie."""

    async def killed(home: Path) -> list[int]:
        job = replace(HELLO, settings=replace(SETTINGS, start_timeout_s=0.5, death_timeout_s=0.6))
        program = script(home, "")
        program.write_text(KILLED_EARLY.format(reported=reported, seconds=seconds))
        async with opened(job, home) as sandbox:
            sandbox._tools = replace(sandbox.tools, bwrap=str(program))  # type: ignore[union-attr]
            with pytest.raises(SandboxBroken, match=r"exit code -9|not up within"):
                await start(sandbox, job, home)
            return pidfd.descendants(os.getpid())

    assert in_child(lambda home: asyncio.run(killed(home)), who) == []


def test_a_start_that_is_cancelled_leaves_nothing(who: Who) -> None:
    async def cancelled(home: Path) -> tuple[list[str], int]:
        async with opened(HELLO, home) as sandbox:
            first = await start(sandbox, HELLO, home, "a-x")
            first.process.stop(None, "x", grace=False)
            await first.process.wait()
            await first.workspace.destroy()
            before = descriptors()
            for i in range(8):
                task = asyncio.create_task(start(sandbox, HELLO, home, f"a-{i}"))
                await turns(i * i * 40)  # anywhere in the middle
                task.cancel()
                try:
                    started = await task
                except asyncio.CancelledError:
                    continue
                started.process.stop(None, "x", grace=False)
                await started.process.wait()
                await started.workspace.destroy()
            uid = sandbox.settings.uid_base if sandbox.separate_uids else os.geteuid()
            return processes_of(uid), descriptors() - before

    alive, more = in_child(lambda home: asyncio.run(cancelled(home)), who)
    assert alive == []
    assert more == 0


def test_no_descriptor_zombie_or_task_is_left(who: Who) -> None:
    async def many(home: Path) -> tuple[int, list[int], int]:
        async with opened(HELLO, home) as sandbox:
            before = -1
            for i in range(6):
                started = await start(sandbox, HELLO, home, f"a-{i}")
                started.process.go()
                assert (await started.process.wait()).exit_code == 0
                await started.workspace.destroy()
                if i == 0:  # constants and threads are made once
                    before = descriptors()
            after = descriptors()
            return after - before, pidfd.descendants(os.getpid()), len(asyncio.all_tasks())

    assert in_child(lambda home: asyncio.run(many(home)), who) == (0, [], 1)


def test_a_shortage_when_the_chain_is_spawned_is_no_broken_sandbox(who: Who) -> None:
    async def work(home: Path) -> Any:
        async with opened(Job({}), home) as sandbox:
            await sandbox.self_test()
            real = subprocess.Popen

            def short(*_: Any, **__: Any) -> Any:
                raise OSError(errno.EMFILE, "Too many open files")

            workspace = await sandbox.prepare("a", 0, SMALL)
            assert isinstance(workspace, BubblewrapWorkspace)
            before = descriptors()
            subprocess.Popen = short  # type: ignore[misc, assignment]
            try:
                await workspace.begin(Ahead(("bash", "run.sh"), {}, 20.0))
            except OSError as problem:
                return problem.errno, descriptors() - before
            finally:
                subprocess.Popen = real  # type: ignore[misc]
                await workspace.destroy()

    assert in_child(lambda home: asyncio.run(work(home)), who) == (errno.EMFILE, 0)
