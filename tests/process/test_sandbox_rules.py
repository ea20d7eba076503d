"""Each rule of SANDBOX.md, section 2, for real: taken out, one of these fails."""

from __future__ import annotations

import asyncio
import os
import platform
import select
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox import pidfd, selftest
from client_agent.sandbox.base import SandboxBroken
from shared.wire import Reason
from tests.support.sandboxed import (
    MIB,
    SETTINGS,
    SMALL,
    Job,
    Outcome,
    Started,
    Who,
    attempt,
    can,
    descriptors,
    in_child,
    opened,
    processes_of,
    run,
    start,
    until,
)

HELLO = Job({"run.sh": "echo hello\n"})


@pytest.fixture(params=["root", "user"])
def who(request: pytest.FixtureRequest) -> Who:
    if not can(request.param):
        pytest.skip("only root can be root")
    return request.param  # type: ignore[no-any-return]


def outer_of(started: Started) -> int:
    """The bwrap outside the namespaces: parent of the init."""
    fields = pidfd.stat_fields(started.process.pid)
    assert fields is not None
    return int(fields[1])


# ---------------------------------------------------------------- 1: never the host's root


async def uids(started: Started) -> list[int]:
    return [selftest.host_uid_of(pid) for pid in (started.process.pid, outer_of(started))]


def test_no_process_of_a_job_is_root_on_the_host(who: Who) -> None:
    outcome = run(replace(HELLO, before_go=uids), who)
    assert 0 not in outcome.extra
    assert len(set(outcome.extra)) == 1


def test_two_slots_of_a_root_agent_have_different_uids() -> None:
    if not can("root"):
        pytest.skip("only root can be root")

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


def script(folder: Path, text: str) -> Path:
    """A program that every uid may run."""
    made = folder / "program"
    made.write_text("#!/bin/sh\n" + text)
    made.chmod(0o755)
    folder.chmod(0o755)
    return made


def run_here(job: Job, home: Path) -> Outcome:
    return asyncio.run(attempt(job, home))


def test_stdin_is_empty_and_no_way_to_the_gate(who: Who) -> None:
    script = "readlink /proc/self/fd/0; cat; echo end\n"
    assert run(Job({"run.sh": script}), who).stdout == "/dev/null\nend\n"


# ---------------------------------------------------------------- 5: death for certain

CROWD = """
for i in $(seq 20); do
  (trap '' TERM HUP INT; setsid bash -c 'trap "" TERM HUP; while :; do sleep 0.01; done' &)
done >/dev/null 2>&1
exit 0
"""


def test_nothing_is_alive_when_the_end_is_told(who: Who) -> None:
    outcome = run(Job({"run.sh": CROWD}, limits=SMALL.model_copy(update={"pids": 120})), who)
    assert (outcome.ended.exit_code, outcome.ended.certain) == (0, True)
    assert outcome.survivors == []


def test_processes_that_will_not_die_are_told_and_nothing_is_touched(who: Who) -> None:
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
        # the next life of the agent
        async with opened(job, home) as sandbox:
            await sandbox.clear()
            left = [p.name for p in (home / "agent").rglob("*")]
        dead = pidfd.stat_fields(started.process.pid)
        return ended, [content, *kept], left, alive and (dead is None or dead[0] == "Z")

    ended, kept, left, killed_later = in_child(lambda home: asyncio.run(undying(home)), who)
    assert (ended.certain, ended.reason) == (False, Reason.AGENT_ERROR)
    assert "could not be killed within 0.2 s" in ended.message
    assert kept == ["precious\n", "attempt"]
    assert set(left) <= {"work", "quarantine", "images"}
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


def test_a_job_is_ended_through_its_own_processes_and_its_init_only(who: Who) -> None:
    script = "trap 'echo term >term' TERM; echo up; while :; do sleep 0.05; done\n"
    outcome = run(Job({"run.sh": script}, timeout_s=0.3, grace_s=0.3, before_go=spy), who)
    outer, targets = outcome.extra
    assert outcome.files["term"] == b"term\n"
    assert outer not in targets
    assert len(targets) >= 2


def test_an_early_stop_leaves_no_orphan(who: Who) -> None:
    async def stop_early(home: Path) -> list[list[str]]:
        found = []
        async with opened(HELLO, home) as sandbox:
            for i in range(12):
                started = await start(sandbox, HELLO, home, f"a-{i}")
                if i % 2:
                    started.process.go()
                started.process.stop(None, "cancelled", grace=False)
                ended = await started.process.wait()
                assert (ended.certain, ended.reason) == (True, None)
                uid = started.workspace.uid
                found.append(processes_of(os.geteuid() if uid is None else uid))
                await started.workspace.destroy()
        return found

    assert in_child(lambda home: asyncio.run(stop_early(home)), who) == [[]] * 12


def test_a_sandbox_whose_outer_bwrap_is_killed_is_a_broken_sandbox(who: Who) -> None:
    """No exit code, and the kill was not ours."""

    async def kill_outer(started: Started) -> None:
        os.kill(outer_of(started), signal.SIGKILL)

    outcome = run(Job({"run.sh": "sleep 30\n"}, during=kill_outer), who)
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.SANDBOX_ERROR, None)
    assert outcome.ended.certain
    assert outcome.survivors == []


# ---------------------------------------------------------------- 7, 8: the agent is killed


def killed_agent(home: Path, *, go: bool) -> tuple[bool, list[str], list[str], list[str]]:
    """Start an agent, kill -9 it at its gate or while its job runs, then live again.

    Returns:
        Whether the sandbox died, what the job left, its processes, what the next life left.
    """
    job = replace(
        HELLO,
        bundle={"run.sh": "echo ran >ran; sync ran; echo up; sleep 60\n"},
        settings=replace(SETTINGS, disk_images=False),
    )
    pidfd.become_subreaper()  # to reap what the agent leaves, as the host's init would
    read, write = os.pipe()
    agent = os.fork()
    if agent == 0:

        async def live() -> None:
            async with opened(job, home) as sandbox:
                started = await start(sandbox, job, home)
                if go:
                    started.process.go()
                    await until(lambda: bool(started.stdout))
                os.write(write, str(started.process.pid).encode())
                await asyncio.Event().wait()

        try:
            asyncio.run(live())
        finally:
            os._exit(1)
    init = int(os.read(read, 20))
    fd = os.pidfd_open(init)
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    died = bool(select.select([fd], [], [], 20)[0])
    ran = sorted(path.name for path in (home / "agent/work/attempt/job").iterdir())

    async def again() -> None:
        async with opened(job, home) as sandbox:
            await sandbox.clear()

    asyncio.run(again())
    left = sorted(path.name for path in (home / "agent").rglob("*"))
    # the killed agent and this process have different pids, and so different uids for root
    return died, ran, processes_of(os.geteuid()) if os.geteuid() else [], left


def test_an_agent_killed_at_the_gate_runs_nothing(who: Who) -> None:
    died, ran, alive, left = in_child(lambda home: killed_agent(home, go=False), who)
    assert died
    assert ran == ["run.sh"]
    assert alive == []
    assert set(left) <= {"work", "images"}


def test_an_agent_killed_under_a_job_takes_it_along(who: Who) -> None:
    died, ran, alive, left = in_child(lambda home: killed_agent(home, go=True), who)
    assert died
    assert ran == ["ran", "run.sh"]
    assert alive == []
    assert set(left) <= {"work", "images"}


def test_chains_are_spawned_on_the_loops_thread_with_nothing_that_forks(who: Who) -> None:
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


def test_a_crowd_in_one_sandbox_leaves_room_in_another(who: Who) -> None:
    crowd = replace(
        HELLO,
        bundle={"run.sh": "for i in $(seq 40); do sleep 20 & done; echo full; wait\n"},
        settings=replace(SETTINGS),
    )

    async def both(home: Path) -> tuple[str, str, Any]:
        async with opened(crowd, home) as sandbox:
            first = await start(sandbox, crowd, home, "a-0", 0)
            first.process.go()
            await until(lambda: bool(first.stdout))
            second = await start(
                sandbox,
                replace(crowd, bundle={"run.sh": "for i in $(seq 30); do sleep 0 & done; wait\n"}),
                home,
                "a-1",
                1,
            )
            second.process.go()
            ended = await second.process.wait()
            said = second.launch.stderr.read_text()
            first.process.stop(None, "enough", grace=False)
            await first.process.wait()
            for started in (first, second):
                await started.workspace.destroy()
            return first.stdout, said, ended

    full, said, ended = in_child(lambda home: asyncio.run(both(home)), who)
    assert (full, said, ended.exit_code) == ("full\n", "", 0)


# ---------------------------------------------------------------- 10: system calls

CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for name, nr, *args in [
    ("keyctl", 250, 0, -3), ("add_key", 248, b"user", b"x", b"y", 1, -3), ("bpf", 321, 0, 0, 0),
    ("io_uring_setup", 425, 1, 0), ("ptrace", 101, 16, 1, 0, 0), ("clone3", 435, 0, 0),
    ("perf_event_open", 298, 0, 0, 0, 0, 0), ("userfaultfd", 323, 1), ("setns", 308, 0, 0),
    ("process_vm_readv", 310, 1, 0, 0, 0, 0, 0), ("open_by_handle_at", 304, 0, 0, 0),
    ("move_pages", 279, 0, 0, 0, 0, 0, 0), ("init_module", 175, 0, 0, 0),
    ("unshare", 272, 0x10000000), ("clone", 56, 0x10000011, 0, 0, 0, 0),
]:
    ctypes.set_errno(0)
    got = libc.syscall(nr, *args)
    print(name, got if got >= 0 else os.strerror(ctypes.get_errno()))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86_64's")
def test_dangerous_system_calls_are_refused(who: Who) -> None:
    outcome = run(Job({"run.sh": "exec python3 calls.py\n", "calls.py": CALLS}), who)
    said = dict(line.split(" ", 1) for line in outcome.stdout.splitlines())
    enosys = {"io_uring_setup", "clone3"}
    assert len(said) == 15
    assert {name for name, text in said.items() if text == "Function not implemented"} == enosys
    assert {text for name, text in said.items() if name not in enosys} == {
        "Operation not permitted"
    }


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86_64's")
def test_a_relaxation_gives_the_call_back(who: Who) -> None:
    job = Job({"run.sh": "exec python3 calls.py\n", "calls.py": CALLS})
    outcome = run(replace(job, allow=frozenset({"io_uring", "process_vm"})), who)
    said = dict(line.split(" ", 1) for line in outcome.stdout.splitlines())
    assert said["io_uring_setup"] == "Bad address"
    assert said["process_vm_readv"] != "Operation not permitted"
    assert said["ptrace"] == said["keyctl"] == "Operation not permitted"


INT80 = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
print("LEAK", ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="i386's entry is x86's")
def test_the_i386_entry_kills(who: Who) -> None:
    outcome = run(Job({"run.sh": "python3 c.py; echo $?\n", "c.py": INT80}), who)
    assert outcome.stdout == f"{128 + signal.SIGSYS}\n"


def test_filter_and_no_new_privileges_hold_for_the_init_too(who: Who) -> None:
    script = "grep -hE '^(Seccomp|NoNewPrivs|CapBnd|CapPrm):' /proc/1/status /proc/self/status\n"
    outcome = run(Job({"run.sh": script}), who)
    values = [line.split()[1] for line in outcome.stdout.splitlines()]
    assert values == ["0" * 16, "0" * 16, "1", "2"] * 2


# ---------------------------------------------------------------- 11: it does not come up


def test_a_sandbox_that_does_not_come_up_quotes_bubblewrap(who: Who) -> None:
    async def broken(home: Path) -> tuple[str, list[str], list[str]]:
        job = replace(HELLO, read_only=((Path("/no/such/folder"), "/opt/x"),))
        async with opened(job, home) as sandbox:
            with pytest.raises(SandboxBroken) as caught:
                await start(sandbox, job, home)
            alive = processes_of(sandbox.settings.uid_base if sandbox.drop else os.geteuid())
        return str(caught.value), alive, [p.name for p in (home / "agent/work").iterdir()]

    message, alive, left = in_child(lambda home: asyncio.run(broken(home)), who)
    assert "did not start (exit code 1): bwrap: Can't find source path /no/such/folder" in message
    assert alive == []
    assert left == []


def test_a_chain_that_hangs_is_given_up_and_killed(who: Who, tmp_path: Path) -> None:
    async def hanging(home: Path) -> tuple[str, list[str]]:
        job = replace(HELLO, settings=replace(SETTINGS, start_timeout_s=0.3))
        slow = script(home, "exec sleep 60\n")
        async with opened(job, home) as sandbox:
            sandbox._tools = replace(sandbox.tools, choom=str(slow))  # type: ignore[union-attr]
            with pytest.raises(SandboxBroken) as caught:
                await start(sandbox, job, home)
            uid = sandbox.settings.uid_base if sandbox.drop else os.geteuid()
            return str(caught.value), processes_of(uid)

    message, alive = in_child(lambda home: asyncio.run(hanging(home)), who)
    assert "not up within 0.3 s" in message
    assert alive == []


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
                for _ in range(i * 3):
                    await asyncio.sleep(0.0005)  # noqa: TID251  # anywhere in the middle
                task.cancel()
                try:
                    started = await task
                except asyncio.CancelledError:
                    continue
                started.process.stop(None, "x", grace=False)
                await started.process.wait()
                await started.workspace.destroy()
            uid = sandbox.settings.uid_base if sandbox.drop else os.geteuid()
            return processes_of(uid), descriptors() - before

    alive, more = in_child(lambda home: asyncio.run(cancelled(home)), who)
    assert alive == []
    assert more == 0


# ---------------------------------------------------------------- around them


def test_no_descriptor_no_zombie_and_no_task_stays(who: Who) -> None:
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


def test_the_host_is_not_visible_in_dev_sys_and_mounts(who: Who) -> None:
    script = (
        "ls /dev; echo --; ls -A /sys /run /boot 2>/dev/null; echo --; cat /proc/self/mountinfo\n"
    )
    outcome = run(Job({"run.sh": script}), who)
    dev, rest, mounts = outcome.stdout.split("--\n")
    known = {"core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin"}
    known |= {"stdout", "tty", "urandom", "zero", "console"}
    assert set(dev.split()) <= known
    assert rest == ""
    if outcome.enforcement["disk"] == "hard":  # a bind shows where it came from, an image does not
        assert str(outcome.zip_path.parent) not in mounts
    assert "/run/ferryman" not in mounts


def test_rlimits_are_in_force(who: Who) -> None:
    outcome = run(Job({"run.sh": "ulimit -Hn; ulimit -Hc; ulimit -Hu\n"}), who)
    nofile, core, nproc = map(int, outcome.stdout.split())
    assert (nofile, core) == (1024, 0)
    assert nproc == SMALL.pids + (64 if outcome.enforcement["pids"] == "hard" else 0)


def test_operators_binds_can_be_read_and_not_written(who: Who, tmp_path: Path) -> None:
    def work(home: Path) -> Outcome:
        data = home / "data"
        data.mkdir()
        (data / "set").write_text("reference\n")
        home.chmod(0o755)
        data.chmod(0o777)
        script = (
            "cat /data/set; (echo x >/data/new) 2>&1 | grep -o 'Read-only.*'; rm -f /data/set\n"
        )
        return run_here(
            replace(HELLO, bundle={"run.sh": script}, read_only=((data, "/data"),)), home
        )

    outcome = in_child(work, who)
    assert outcome.stdout == "reference\nRead-only file system\n"


def test_variables_and_arguments_are_data(who: Who) -> None:
    odd = "a\n--bind / /host\n$(touch /job/pwned)"
    job = Job({}, env={"ODD": odd}, argv=("printenv", "ODD"))
    outcome = run(job, who)
    assert outcome.stdout == odd + "\n"
    assert set(outcome.files) == {"stdout.log", "stderr.log", "ferryman.json"}
    job = Job({}, argv=("printf", "%s|", "", "a b", "$(id)", "-x", odd))
    assert run(job, who).stdout == f"|a b|$(id)|-x|{odd}|"


def test_the_kernel_takes_the_job_before_the_agent(who: Who) -> None:
    assert run(Job({"run.sh": "cat /proc/self/oom_score_adj\n"}), who).stdout == "500\n"


def test_a_megabyte_of_memory_is_not_much_to_ask(who: Who) -> None:
    outcome = run(replace(HELLO, limits=SMALL.model_copy(update={"memory": 24 * MIB})), who)
    assert outcome.ended.exit_code == 0
