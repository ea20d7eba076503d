"""An agent that is killed with kill -9: no job runs on, and the next start finds what is left."""

import asyncio
import os
import platform
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.kernel import cgroup_tree, cgroups, pidfd
from client_agent.sandbox.kernel.work_folders import WorkFolders
from tests.kit.child import (
    Who,
    can,
    child_test,
    dead_within,
    in_child,
    kill_after_report,
    processes_of,
)
from tests.kit.waiting import turns, until
from tests.sandbox.conftest import without
from tests.sandbox.kernel_features import offers
from tests.sandbox.real_sandbox import ON_DISK, SMALL, TOPS, Job, bash, opened, python, start

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


without_parent_death = without("--die-with-parent")


def job_folder(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "agent/work/attempt/job").iterdir())


async def cleared(home: Path) -> list[str]:
    """What there is once another agent has started."""
    async with opened(RUNS, home) as sandbox:
        await sandbox.clear()
        return sorted({path.name for path in (home / "agent").rglob("*")} - TOPS)


@child_test
def test_nothing_of_a_job_runs_on_after_its_agent_was_killed(home: Path, who: Who) -> None:
    for go in (False, True):
        place = home / str(go)
        place.mkdir()
        init, _ = kill_agent(RUNS, place, go=go)
        assert dead_within(init)
        assert job_folder(place) == (["ran", "run.sh"] if go else ["run.sh"])
        assert asyncio.run(cleared(place)) == []
    # the killed agent and this process have different pids, and so different uids for root
    assert who == "root" or processes_of(os.geteuid()) == []


@child_test
def test_the_recorded_init_of_a_killed_agent_is_killed_at_the_next_start(home, who) -> None:
    """Where the death of the agent did not: as when bwrap's outer process is killed with it."""
    without_parent_death()
    init, _ = kill_agent(RUNS, home, go=True)
    assert not dead_within(init, 0.1)
    cgroup_tree.remove_empty_groups = cgroups.subgroups = lambda *_: []  # type: ignore[assignment]
    assert asyncio.run(cleared(home)) == []
    assert dead_within(init, 0)


@child_test
def test_the_gate_of_a_killed_agent_ends_even_if_nothing_kills_it(home: Path, who: Who) -> None:
    """End of input is not ``go``."""
    without_parent_death()
    init, _ = kill_agent(RUNS, home, go=False)
    assert dead_within(init)
    assert job_folder(home) == ["run.sh"]


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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="not x86_64: a safe init is not proved")
@child_test
def test_a_job_cannot_control_its_init_and_dies_with_its_agent(home: Path, who: Who) -> None:
    init, message = kill_agent(python(TAKE_OVER, settings=ON_DISK), home, go=True)
    died = dead_within(init)
    pidfd.kill(init)
    assert (message, died) == ("No such file or directory\n", True)


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


def killed_early(home: Path) -> bool:
    """Kill an agent whose sandbox's init stands still just after it made the gate; whether the init
    had set its parent-death signal by then."""
    init, bound = kill_after_report(lambda report: stop_the_init(home, report))
    pidfd.kill(init, signal.SIGCONT)
    died = dead_within(init)
    pidfd.kill(init)
    os.close(init)
    assert died
    assert bound == "True" or job_folder(home) == ["run.sh"]
    return bound == "True"


def test_the_gate_opens_only_after_the_init_has_its_parent_death_signal() -> None:
    """The ready byte may come before the init sets its parent-death signal: a busy host may stop it
    there."""
    who: Who = "root" if can("root") else "user"
    assert any(not in_child(killed_early, who) for _ in range(200)), "it was never caught between"


# ---------------------------------------------------------------- what an earlier run left


def recorded(folders: WorkFolders, name: str, pid: int) -> None:
    """What an agent keeps of an attempt whose init that is."""
    folder = folders.make(name)
    folders.make_job_folder(folder, None)
    folders.record_init(folder, pid)


@child_test
async def test_a_restart_in_the_middle_clears_everything(home: Path, who: Who) -> None:
    """An earlier run left records, directories and an image. A process of another program is not
    killed."""
    left, unrelated = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]  # noqa: ASYNC220
    folders = WorkFolders(home / "agent", separate_uids=who == "root")
    (home / "agent/images").mkdir(parents=True)
    (home / "agent/images/7.img").write_bytes(bytes(100))
    recorded(folders, "old-1", left.pid)
    recorded(folders, "old-2", unrelated.pid)
    record = home / "agent/work/old-2/init"
    boot, pid_text, started = record.read_text().split()
    record.write_text(f"{boot} {pid_text} {int(started) + 1}\n")  # the pid was used again
    (home / "agent/work/old-3.removing.4").mkdir()
    folders.close()
    assert await cleared(home) == []
    assert (left.wait(10), unrelated.poll()) == (-signal.SIGKILL, None)
    unrelated.kill()
    unrelated.wait()


@pytest.mark.skipif(not offers("root", "memory"), reason="no cgroups: what is left is not proved")
@child_test
async def test_a_process_left_in_a_cgroup_is_killed_at_the_next_start(home: Path) -> None:
    """Its group may be busy for a moment after its death."""
    name = WorkFolders(home / "agent", separate_uids=True).name
    group = cgroups.Cgroup(cgroup_tree.find_hierarchy(name), "old", SMALL)
    left = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    for folder in group.folders:
        (folder / "cgroup.procs").write_text(str(left.pid))
    real, tries = cgroups.remove_group, list[Path]()

    def busy(folder: Path) -> None:
        tries.append(folder)
        if len(tries) < 4:
            raise OSError(16, "Device or resource busy")
        real(folder)

    cgroups.remove_group = busy
    assert await cleared(home) == []
    assert [folder for folder in group.folders if folder.exists()] == []
    assert left.wait(10) == -signal.SIGKILL
    assert len(tries) > 3


@child_test
async def test_an_agent_starts_although_a_process_of_its_last_run_does_not_die(home, who) -> None:
    """It keeps its folder, and everything else goes; jobs run; the next start tries again."""
    agent = home / "agent"
    undying = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    folders = WorkFolders(agent, separate_uids=who == "root")
    recorded(folders, "undying", undying.pid)
    recorded(folders, "dead", 2**22 - 1)
    folders.close()
    real, pidfd.kill = pidfd.kill, lambda *_: None
    job = bash("true\n", settings=replace(ON_DISK, death_timeout_s=0.2))
    async with opened(job, home) as sandbox:
        await sandbox.clear()
        assert [path.name for path in (agent / "quarantine").iterdir()] == ["undying"]
        assert list((agent / "work").iterdir()) == []
        pidfd.kill = real
        started = await start(sandbox, job, home)
        assert (await started.ends()).exit_code == 0
        await started.workspace.destroy()
    assert await cleared(home) == []
    undying.wait()


@child_test
async def test_no_job_starts_beside_what_an_earlier_run_left(home: Path, who: Who) -> None:
    """A clear that failed is tried again; those who come at once wait for the same one."""
    (home / "agent/work/old/job").mkdir(parents=True)
    async with opened(RUNS, home) as sandbox:
        real, calls, go_on = sandbox.work_folders.clear, list[int](), threading.Event()

        def clear(alive: Any = ()) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise OSError(5, "Input/output error")
            go_on.wait(60)
            real(alive)

        async def prepare(name: str) -> set[str]:
            workspace = await sandbox.prepare(name, 0, SMALL)
            names = {path.name for path in (home / "agent/work").iterdir()}
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
        for task in tasks:
            assert await task <= {"b", "c"}
    assert len(calls) == 2
