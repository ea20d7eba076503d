"""An agent that is killed with kill -9: no job runs on, and the next start finds what is left."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.bubblewrap import command
from client_agent.sandbox.kernel import cgroup_tree, cgroups, pidfd
from client_agent.sandbox.kernel.work_folders import WorkFolders
from tests.kit.real_sandbox import (
    ON_DISK,
    SMALL,
    TOPS,
    Job,
    Who,
    bash,
    can,
    dead_within,
    in_child,
    opened,
    processes_of,
    python,
    start,
    turns,
)
from tests.kit.waiting import until
from tests.sandbox.kernel_features import offers

RUNS = bash("echo ran >ran; sync ran; echo up; sleep 60\n", settings=ON_DISK)


def kill_agent(job: Job, home: Path, *, go: bool) -> tuple[int, str]:
    """Kill an agent at its closed gate, or (``go``) once its job has printed something.

    Returns:
        A pidfd of the sandbox's init, and what the job had printed.
    """

    async def agent(report: Callable[[str], object]) -> None:
        async with opened(job, home) as sandbox:
            started = await start(sandbox, job, home)
            if go:
                started.process.go()
                await started.says()
            report(f"{started.process.pid} {started.stdout}")
            await asyncio.Event().wait()

    return kill_after_report(agent)


def kill_after_report(
    agent: Callable[[Callable[[str], object]], Awaitable[None]],
) -> tuple[int, str]:
    """Run ``agent`` in a fork of this process, and kill it once it has made its report: the pid of
    a sandbox's init, a space, any text. A pidfd of the init, which is a child of ours now, and the
    text."""
    pidfd.become_subreaper()  # to reap what the agent leaves, as the host's init would
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:

        async def run() -> None:
            await agent(lambda report: os.write(write, report.encode()))

        with suppress(BaseException):
            asyncio.run(run())
        os._exit(1)
    os.close(write)
    init, _, text = os.read(read, 200).decode().partition(" ")
    os.close(read)
    fd = os.pidfd_open(int(init))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return fd, text


def without_parent_death() -> None:
    real = command.bwrap_options

    def fewer(*args: Any, **given: Any) -> list[str]:
        return [option for option in real(*args, **given) if option != "--die-with-parent"]

    command.bwrap_options = fewer


def job_folder(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "agent/work/attempt/job").iterdir())


async def cleared(home: Path) -> list[str]:
    """What there is once another agent has started."""
    async with opened(RUNS, home) as sandbox:
        await sandbox.clear()
        return sorted({path.name for path in (home / "agent").rglob("*")} - TOPS)


@pytest.mark.parametrize("go", [False, True])
def test_nothing_of_a_job_runs_on_after_its_agent_was_killed(who: Who, go: bool) -> None:
    def work(home: Path) -> Any:
        init, _ = kill_agent(RUNS, home, go=go)
        died, ran = dead_within(init), job_folder(home)
        left = asyncio.run(cleared(home))
        # the killed agent and this process have different pids, and so different uids for root
        return died, ran, left, processes_of(os.geteuid()) if os.geteuid() else []

    files = ["ran", "run.sh"] if go else ["run.sh"]
    assert in_child(work, who) == (True, files, [], [])


def test_the_recorded_init_of_a_killed_agent_is_killed_at_the_next_start(who: Who) -> None:
    """Where the death of the agent did not: as when bwrap's outer process is killed with it."""

    def work(home: Path) -> tuple[bool, list[str], bool]:
        without_parent_death()
        init, _ = kill_agent(RUNS, home, go=True)
        survived = not dead_within(init, 0.1)
        cgroup_tree.remove_empty_groups = cgroups.subgroups = lambda *_: []  # type: ignore[assignment]
        return survived, asyncio.run(cleared(home)), dead_within(init, 0)

    assert in_child(work, who) == (True, [], True)


def test_the_gate_of_a_killed_agent_ends_even_if_nothing_kills_it(who: Who) -> None:
    """End of input is not ``go``."""

    def work(home: Path) -> tuple[bool, list[str]]:
        without_parent_death()
        init, _ = kill_agent(RUNS, home, go=False)
        return dead_within(init), job_folder(home)

    assert in_child(work, who) == (True, ["run.sh"])


TAKE_OVER = r"""
import ctypes, os, time
def libc_at(pid):
    for line in open(f"/proc/{pid}/maps"):
        if "libc.so" in line: return int(line.split("-")[0], 16)
try:
    here = ctypes.cast(ctypes.CDLL(None).wait4, ctypes.c_void_p).value
    at = libc_at(1) + here - libc_at("self")
    code = "b89d000000" "bf01000000" "31f6" "0f05"  # prctl(PR_SET_PDEATHSIG, 0)
    code += "b822000000" "0f05" "ebf7"              # for (;;) pause()
    os.pwrite(os.open("/proc/1/mem", os.O_RDWR), b"\x90" * 0x60 + bytes.fromhex(code), at)
    if os.fork() == 0:  # an orphan, so that the init's wait4 returns
        if os.fork() == 0: os.setsid(); time.sleep(0.2); os._exit(0)
        os._exit(0)
    os.wait(); time.sleep(0.5)
    print("taken", flush=True)
except OSError as problem:
    print(problem.strerror, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64",
    reason="not x86_64: a safe init is not proved",
)
def test_a_job_cannot_control_its_init_and_dies_with_its_agent(who: Who) -> None:
    def work(home: Path) -> tuple[str, bool]:
        init, message = kill_agent(python(TAKE_OVER, settings=ON_DISK), home, go=True)
        died = dead_within(init)
        pidfd.kill(init)
        return message, died

    assert in_child(work, who) == ("No such file or directory\n", True)


def killed_early(home: Path) -> tuple[bool, bool, list[str]]:
    """Kill an agent whose sandbox's init stands still just after it made the gate.

    Returns:
        Whether the init had set its parent-death signal by then; whether it died when it went
        on; what is in the job's directory.
    """
    init, bound = kill_after_report(lambda report: stop_the_init(home, report))
    pidfd.kill(init, signal.SIGCONT)
    died = dead_within(init)
    pidfd.kill(init)
    os.close(init)
    return bound == "True", died, job_folder(home)


async def stop_the_init(home: Path, report: Callable[[str], object]) -> None:
    real, inits = pidfd.open_child, []

    def hunt(pid: int, parent: int) -> int | None:
        opened = real(pid, parent)
        children = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY)
        with suppress(PermissionError):  # before all others, so that it is on time on a busy host
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        for _ in range(1_000_000):
            if os.pread(children, 20, 0):
                break
        os.kill(pid, signal.SIGSTOP)
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.close(children)
        inits.append(pid)
        return opened

    pidfd.open_child = hunt
    async with opened(RUNS, home) as sandbox:
        waits = asyncio.Event()
        sleep = sandbox.clock.sleep

        async def noted(seconds: float) -> None:
            if seconds < 0.1:
                waits.set()
            await sleep(seconds)

        sandbox.clock.sleep = noted  # type: ignore[method-assign]
        starting = asyncio.create_task(start(sandbox, RUNS, home))
        waiting = asyncio.create_task(waits.wait())
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        bound = pidfd.has_seccomp_filter(inits[0])
        if starting.done():
            started = starting.result()
            started.process.go()
            await started.says()
        report(f"{inits[0]} {bound}")
        await asyncio.Event().wait()


def test_the_gate_opens_only_after_the_init_has_its_parent_death_signal() -> None:
    """The ready byte may come before the init sets its parent-death signal: a busy host may stop it
    there."""
    for _ in range(200):
        bound, died, files = in_child(killed_early, "root" if can("root") else "user")
        assert died
        if not bound:
            assert files == ["run.sh"]
            return
    pytest.fail("the init was never caught in between")


# ---------------------------------------------------------------- what an earlier run left


def test_a_restart_in_the_middle_clears_everything(who: Who) -> None:
    """An earlier run left records, directories and an image. A process of another program is not
    killed."""

    async def second_run(home: Path) -> tuple[int, int | None, list[str]]:
        recorded, unrelated = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]  # noqa: ASYNC220
        work_folders = WorkFolders(home / "agent", separate_uids=os.geteuid() == 0)
        (home / "agent/images").mkdir(parents=True)
        (home / "agent/images/7.img").write_bytes(bytes(100))
        for name, one in (("old-1", recorded), ("old-2", unrelated)):
            folder = work_folders.make(name)
            work_folders.make_job_folder(folder, None)
            work_folders.record_init(folder, one.pid)
        record = home / "agent/work/old-2/init"
        boot, pid_text, started = record.read_text().split()
        record.write_text(f"{boot} {pid_text} {int(started) + 1}\n")  # the pid was used again
        (home / "agent/work/old-3.removing.4").mkdir()
        work_folders.close()
        left = await cleared(home)
        code, alive = recorded.wait(10), unrelated.poll()
        unrelated.kill()
        unrelated.wait()
        return code, alive, left

    assert in_child(second_run, who) == (-signal.SIGKILL, None, [])


def test_a_process_left_in_a_cgroup_is_killed_at_the_next_start() -> None:
    """Its group may be busy for a moment after its death."""
    if not offers("root", "memory"):
        pytest.skip("no cgroups here: that a restart kills what is left in them is not proved")

    async def second_run(home: Path) -> tuple[int, int, list[str]]:
        name = WorkFolders(home / "agent", separate_uids=True).name
        group = cgroups.Cgroup(cgroup_tree.find_hierarchy(name), "old", SMALL)
        left = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
        for folder in group.folders:
            (folder / "cgroup.procs").write_text(str(left.pid))
        real, tries = cgroups.remove_group, 0

        def busy(folder: Path) -> None:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise OSError(16, "Device or resource busy")
            real(folder)

        cgroups.remove_group = busy
        kept = await cleared(home)
        kept += [str(folder) for folder in group.folders if folder.exists()]
        return left.wait(10), tries, kept

    code, tries, kept = in_child(second_run, "root")
    assert (code, kept) == (-signal.SIGKILL, [])
    assert tries > 3


def test_an_agent_starts_although_a_process_of_its_last_run_does_not_die(who: Who) -> None:
    """It keeps its folder, and everything else goes; jobs run; the next start tries again."""

    async def again(home: Path) -> tuple[int | None, list[str], list[str], list[str]]:
        agent = home / "agent"
        undying = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
        work_folders = WorkFolders(agent, separate_uids=os.geteuid() == 0)
        for name, pid in (("undying", undying.pid), ("dead", 2**22 - 1)):
            folder = work_folders.make(name)
            work_folders.make_job_folder(folder, None)
            work_folders.record_init(folder, pid)
        work_folders.close()
        real, pidfd.kill = pidfd.kill, lambda *_: None
        job = bash("true\n", settings=replace(ON_DISK, death_timeout_s=0.2))
        async with opened(job, home) as sandbox:
            await sandbox.clear()
            kept = [path.name for path in (agent / "quarantine").iterdir()]
            at_work = [path.name for path in (agent / "work").iterdir()]
            pidfd.kill = real
            started = await start(sandbox, job, home)
            code = (await started.ends()).exit_code
            await started.workspace.destroy()
        left = await cleared(home)
        undying.wait()
        return code, kept, at_work, left

    assert in_child(again, who) == (0, ["undying"], [], [])


def test_no_job_starts_beside_what_an_earlier_run_left(who: Who) -> None:
    """A clear that failed is tried again; those who come at once wait for the same one."""

    async def both(home: Path) -> tuple[int, list[str]]:
        (home / "agent/work/old/job").mkdir(parents=True)
        async with opened(RUNS, home) as sandbox:
            real, calls, go_on = sandbox.work_folders.clear, list[int](), threading.Event()

            def clear(alive: Any = ()) -> None:
                calls.append(1)
                if len(calls) == 1:
                    raise OSError(5, "Input/output error")
                go_on.wait(60)
                real(alive)

            async def prepare(name: str) -> list[str]:
                workspace = await sandbox.prepare(name, 0, SMALL)
                names = [path.name for path in (home / "agent/work").iterdir()]
                await workspace.destroy()
                return names

            sandbox.work_folders.clear = clear  # type: ignore[method-assign]
            with pytest.raises(OSError, match="Input/output error"):
                await prepare("a")
            tasks = [asyncio.create_task(prepare(name)) for name in ("b", "c")]
            await until(lambda: len(calls) == 2)
            await turns(100)
            assert not any(task.done() for task in tasks)
            go_on.set()
            names = [name for task in tasks for name in await task]
        return len(calls), [name for name in names if name not in ("b", "c")]

    assert in_child(both, who) == (2, [])
