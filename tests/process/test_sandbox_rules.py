"""The rules of the sandbox (docs/security.md), tested with real jobs."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.bubblewrap import selftest
from client_agent.sandbox.kernel import pidfd
from shared.wire import Reason
from tests.kit.killed_agent import kill_agent
from tests.kit.real_sandbox import (
    MIB,
    SETTINGS,
    SMALL,
    Job,
    Outcome,
    Started,
    Who,
    attempt,
    can,
    in_child,
    opened,
    processes_of,
    run,
    start,
)
from tests.kit.waiting import until

HELLO = Job({"run.sh": "echo hello\n"})


def outer_of(started: Started) -> int:
    """The bwrap outside the namespaces: parent of the init."""
    fields = pidfd.stat_fields(started.process.pid)
    assert fields is not None
    return int(fields[1])


# ---------------------------------------------------------------- 1: never the host's root


async def uids(started: Started) -> list[int]:
    return [selftest.real_uid(pid) for pid in (started.process.pid, outer_of(started))]


def test_no_process_of_a_job_is_root_on_the_host(who: Who) -> None:
    outcome = run(replace(HELLO, before_go=uids), who)
    assert 0 not in outcome.extra
    assert len(set(outcome.extra)) == 1


async def groups(started: Started) -> list[list[str] | None]:
    inits = (started.process.pid, *pidfd.descendants(started.process.pid))
    return [pidfd.status_field(pid, "Groups:") for pid in inits]


def test_no_process_of_a_job_has_a_group_of_the_agent() -> None:
    if not can("root"):
        pytest.skip("not root: that groups are left is not proved")

    def work(home: Path) -> Any:
        os.setgroups([0, 4, 27])
        return run_here(replace(HELLO, before_go=groups), home)

    assert in_child(work, "root").extra == [[], []]


def test_two_slots_of_a_root_agent_have_different_uids() -> None:
    if not can("root"):
        pytest.skip("not root: that slots have uids of their own is not proved")

    async def both(home: Path) -> list[int | None]:
        async with opened(HELLO, home) as sandbox:
            workspaces = [await sandbox.prepare(f"a-{i}", i, SMALL) for i in (0, 1)]
            for workspace in workspaces:
                await workspace.destroy()
            return [workspace.uid for workspace in workspaces]

    first, second = in_child(lambda home: asyncio.run(both(home)), "root")
    assert first != second
    assert 0 not in (first, second)


# ---------------------------------------------------------------- 3: nothing of the agent's


def test_descriptors_of_the_agent_do_not_reach_the_job(who: Who) -> None:
    def work(home: Path) -> Any:
        secret = os.open("/etc/passwd", os.O_RDONLY)
        os.set_inheritable(secret, True)
        return run_here(replace(HELLO, bundle={"run.sh": "ls /proc/self/fd\n"}), home)

    outcome = in_child(work, who)
    assert outcome.stdout.split() == ["0", "1", "2", "3"]


def run_here(job: Job, home: Path) -> Outcome:
    return asyncio.run(attempt(job, home))


def test_stdin_is_empty_and_not_the_gates_pipe(who: Who) -> None:
    script = "readlink /proc/self/fd/0; cat; echo end\n"
    assert run(Job({"run.sh": script}), who).stdout == "/dev/null\nend\n"


# ---------------------------------------------------------------- 5: death for certain

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
    dead = bool(select.select([fd], [], [], 0)[0])
    os.close(fd)
    return dead


def test_all_processes_are_dead_when_the_end_is_reported(who: Who) -> None:
    limits = SMALL.model_copy(update={"pids": 120, "memory": 512 * MIB})
    job = Job({"run.sh": "python3 many.py; exit 0\n", "many.py": MANY_PROCESSES}, limits=limits)
    outcome = run(replace(job, during=dead_at_the_end), who)
    assert (outcome.ended.exit_code, outcome.ended.certain) == (0, True)
    assert outcome.extra, "its init was alive"
    assert outcome.survivors == []


def test_processes_that_do_not_die_are_reported_and_their_folder_is_kept(who: Who) -> None:
    """As in uninterruptible sleep: here the kill is taken away instead."""

    async def undying(home: Path) -> tuple[Any, list[str], list[str], bool]:
        job = replace(
            HELLO,
            bundle={"run.sh": "echo precious >file; sleep 60\n"},
            settings=replace(SETTINGS, death_timeout_s=0.2, disk_images=False),
            timeout_s=0.3,
            grace_s=0.1,
        )
        async with opened(job, home) as sandbox:
            started = await start(sandbox, job, home)
            real, pidfd.kill = pidfd.kill, lambda *_: None
            started.process.go()
            ended = await started.process.wait()
            await started.workspace.destroy()
            pidfd.kill = real
            kept = sorted(p.name for p in (home / "agent" / "quarantine").iterdir())
            content = (home / "agent/quarantine/attempt/job/file").read_text()
            alive = bool(pidfd.descendants(started.process.pid))
        # the next run of the agent
        async with opened(job, home) as sandbox:
            await sandbox.clear()
            left = [p.name for p in (home / "agent").rglob("*")]
        dead = pidfd.stat_fields(started.process.pid)
        return ended, [content, *kept], left, alive and (dead is None or dead[0] == "Z")

    ended, kept, left, killed_later = in_child(lambda home: asyncio.run(undying(home)), who)
    assert (ended.certain, ended.reason) == (False, Reason.AGENT_ERROR)
    assert "could not be killed within 0.2 s" in ended.message
    assert kept == ["precious\n", "attempt"]
    assert set(left) <= {"work", "quarantine", "images", "cgroups"}
    assert killed_later


# ---------------------------------------------------------------- 6: the outer bwrap is left alone


async def spy(started: Started) -> tuple[int, set[int]]:
    """Note whom signals go to until the end."""
    targets: set[int] = set()
    real = signal.pidfd_send_signal

    def noted(fd: int, *args: Any) -> None:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        targets.add(int(next(line.split()[1] for line in lines if line.startswith("Pid:"))))
        real(fd, *args)

    signal.pidfd_send_signal = noted
    outer = outer_of(started)
    started.process.go()
    await started.process.wait()
    return outer, targets


def test_signals_go_to_the_jobs_processes_and_its_init_only(who: Who) -> None:
    script = "trap 'echo term >term' TERM; echo up; while :; do sleep 0.05; done\n"
    outcome = run(Job({"run.sh": script}, timeout_s=0.3, grace_s=0.3, before_go=spy), who)
    outer, targets = outcome.extra
    assert outcome.files["term"] == b"term\n"
    assert outer not in targets
    assert len(targets) >= 2


def test_orphans_of_a_chain_become_the_agents_children(who: Who) -> None:
    async def ask(_: Started) -> int:
        value = ctypes.c_int()
        ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
        return value.value

    assert run(replace(HELLO, before_go=ask), who).extra == 1


def test_an_early_stop_leaves_no_orphan(who: Who) -> None:
    async def stop_early(home: Path) -> list[list[str]]:
        processes = []
        async with opened(HELLO, home) as sandbox:
            for i in range(12):
                started = await start(sandbox, HELLO, home, f"a-{i}")
                if i % 2:
                    started.process.go()
                started.process.stop(None, "cancelled", grace=False)
                ended = await started.process.wait()
                assert (ended.certain, ended.reason) == (True, None)
                uid = started.workspace.uid
                processes.append(processes_of(os.geteuid() if uid is None else uid))
                await started.workspace.destroy()
        return processes

    assert in_child(lambda home: asyncio.run(stop_early(home)), who) == [[]] * 12


def test_a_sandbox_whose_outer_bwrap_is_killed_is_a_broken_sandbox(who: Who) -> None:
    """There is no exit code, and the agent did not kill it."""

    async def kill_outer(started: Started) -> None:
        os.kill(outer_of(started), signal.SIGKILL)

    outcome = run(Job({"run.sh": "sleep 30\n"}, during=kill_outer), who)
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.SANDBOX_ERROR, None)
    assert outcome.ended.certain
    assert outcome.survivors == []


# ---------------------------------------------------------------- 7, 8: the agent is killed


def killed_agent(home: Path, *, go: bool) -> tuple[bool, list[str], list[str], list[str]]:
    """Start an agent, kill -9 it at its gate or while its job runs, then start another one.

    Returns:
        Whether the sandbox died, what the job left, its processes, what the second agent left.
    """
    job = replace(
        HELLO,
        bundle={"run.sh": "echo ran >ran; sync ran; echo up; sleep 60\n"},
        settings=replace(SETTINGS, disk_images=False),
    )
    init, _ = kill_agent(job, home, go=go)
    died = bool(select.select([init], [], [], 20)[0])
    ran = sorted(path.name for path in (home / "agent/work/attempt/job").iterdir())

    async def again() -> None:
        async with opened(job, home) as sandbox:
            await sandbox.clear()

    asyncio.run(again())
    left = sorted(path.name for path in (home / "agent").rglob("*"))
    # the killed agent and this process have different pids, and so different uids for root
    return died, ran, processes_of(os.geteuid()) if os.geteuid() else [], left


def test_no_job_runs_if_the_agent_is_killed_before_the_gate_opens(who: Who) -> None:
    died, ran, alive, left = in_child(lambda home: killed_agent(home, go=False), who)
    assert died
    assert ran == ["run.sh"]
    assert alive == []
    assert set(left) <= {"work", "images", "cgroups"}


def test_a_job_dies_with_its_killed_agent(who: Who) -> None:
    died, ran, alive, left = in_child(lambda home: killed_agent(home, go=True), who)
    assert died
    assert ran == ["ran", "run.sh"]
    assert alive == []
    assert set(left) <= {"work", "images", "cgroups"}


def test_chains_are_spawned_on_the_loops_thread_without_options_that_fork(who: Who) -> None:
    def work(home: Path) -> list[tuple[bool, dict[str, Any]]]:
        seen: list[tuple[bool, dict[str, Any]]] = []
        real = subprocess.Popen

        class Spy(real):  # type: ignore[misc, valid-type]
            def __init__(self, argv: Any, **given: Any) -> None:
                seen.append((threading.current_thread() is threading.main_thread(), given))
                super().__init__(argv, **given)

        subprocess.Popen = Spy  # type: ignore[assignment, misc]
        run_here(HELLO, home)
        keys = ("env", "preexec_fn", "user", "group", "extra_groups", "umask", "start_new_session")
        return [(here, {key: given.get(key) for key in keys}) for here, given in seen]

    seen = in_child(work, who)
    expected = dict.fromkeys(("preexec_fn", "user", "group", "extra_groups", "umask"))
    expected |= {"env": {}, "start_new_session": True}
    chains = [(here, given) for here, given in seen if given["start_new_session"]]
    assert chains == [(True, expected)] * 2  # the self-test's, and the job's


# ---------------------------------------------------------------- 9: limits count this sandbox only


def test_many_processes_in_one_sandbox_do_not_count_in_another(who: Who) -> None:
    many = replace(
        HELLO,
        bundle={"run.sh": "for i in $(seq 40); do sleep 20 & done; echo full; wait\n"},
        settings=replace(SETTINGS),
    )

    async def both(home: Path) -> tuple[str, str, Any]:
        async with opened(many, home) as sandbox:
            first = await start(sandbox, many, home, "a-0", 0)
            first.process.go()
            await until(lambda: bool(first.stdout))
            second = await start(
                sandbox,
                replace(many, bundle={"run.sh": "for i in $(seq 30); do sleep 0 & done; wait\n"}),
                home,
                "a-1",
                1,
            )
            second.process.go()
            ended = await second.process.wait()
            stderr = second.launch.stderr.read_text()
            first.process.stop(None, "enough", grace=False)
            await first.process.wait()
            for started in (first, second):
                await started.workspace.destroy()
            return first.stdout, stderr, ended

    full, stderr, ended = in_child(lambda home: asyncio.run(both(home)), who)
    assert (full, stderr, ended.exit_code) == ("full\n", "", 0)


def test_a_job_without_a_limit_of_time_is_not_stopped(who: Who) -> None:
    outcome = run(Job({"run.sh": "sleep 0.1\necho done\n"}, timeout_s=0), who)
    assert (outcome.ended.reason, outcome.stdout) == (None, "done\n")
