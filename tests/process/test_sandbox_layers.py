"""Each protection of the sandbox alone: it works if another one is turned off."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import select
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.bubblewrap import command, seccomp, selftest
from client_agent.sandbox.kernel import devices, pidfd, start_namespace
from tests.kit.kernel_features import offers
from tests.kit.killed_agent import kill_after_report, kill_agent
from tests.kit.real_sandbox import (
    SETTINGS,
    Job,
    Outcome,
    Started,
    Who,
    attempt,
    bash,
    in_child,
    opened,
    run,
    start,
)
from tests.kit.waiting import until


def permit_all_calls() -> None:
    """Let every system call pass, in this process."""
    seccomp.RULES = ()  # type: ignore[misc, assignment]
    seccomp.NAMESPACES = 0  # type: ignore[misc]
    seccomp.program.cache_clear()


def without(option: str, length: int = 1) -> None:
    """Leave an option of bwrap and its arguments out, in this process."""
    real = command.bwrap_options

    def fewer(*args: Any, **given: Any) -> list[str]:
        options = real(*args, **given)
        at = options.index(option)
        return options[:at] + options[at + length :]

    command.bwrap_options = fewer


def run_after(change: Callable[[], None], job: Job, who: Who) -> Outcome:
    """Run a job in a process to which a change was made."""

    def work(home: Path) -> Outcome:
        change()
        return asyncio.run(attempt(job, home))

    outcome = in_child(work, who)
    assert isinstance(outcome, Outcome)
    return outcome


# ---------------------------------------------------------------- namespaces

NEST = """
for kind in U m n p i u C; do unshare -$kind true 2>&1 | cut -d: -f3; done
unshare -Ur true 2>&1 | cut -d: -f3
mount -t tmpfs none /tmp 2>&1 | grep -o 'permission denied\\|must be superuser'
chroot / true 2>&1 | cut -d: -f3
"""


def test_without_the_filter_no_namespace_can_be_made_inside(who: Who) -> None:
    """--disable-userns alone: there is no room for another user namespace, and without a capability
    there are no others."""
    outcome = run_after(permit_all_calls, bash(NEST), who)
    full, no = " No space left on device", " Operation not permitted"
    lines = outcome.stdout.splitlines()
    assert lines[:8] == [full, *[no] * 6, full]
    assert len(lines) == 10
    assert lines[9] == no


def test_without_disable_userns_no_namespace_can_be_made_inside(who: Who) -> None:
    """The filter alone."""
    outcome = run_after(lambda: without("--disable-userns"), bash(NEST), who)
    assert outcome.stdout.splitlines()[:8] == [" Operation not permitted"] * 8


@pytest.fixture
def segment() -> Iterator[int]:
    """A System V memory segment of the host's that everybody may use: its key."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x46455252 ^ os.getpid()
    made = libc.shmget(key, 4096, 0o1000 | 0o666)  # IPC_CREAT
    assert made >= 0
    yield key
    libc.shmctl(made, 0, None)  # IPC_RMID


def test_memory_segments_and_queues_of_the_host_are_not_visible(who: Who, segment: int) -> None:
    program = f"""
import ctypes
print(ctypes.CDLL(None).shmget({segment}, 4096, 0o666))
print([len(open(f"/proc/sysvipc/{{kind}}").readlines()) for kind in ("shm", "msg", "sem")])
"""
    outcome = run(Job({"run.sh": "exec python3 p.py\n", "p.py": program}), who)
    assert outcome.stdout == "-1\n[1, 1, 1]\n"


def test_the_host_name_and_the_paths_of_cgroups_are_not_visible(who: Who) -> None:
    outcome = run(bash("uname -n; cut -d: -f3 /proc/self/cgroup | sort -u\n"), who)
    name, *places = outcome.stdout.splitlines()
    assert name == "sandbox"
    assert not [place for place in places if "ferryman" in place]
    if offers(who, "memory"):
        assert places == ["/"]


def test_a_job_has_a_session_of_its_own_and_no_terminal(who: Who) -> None:
    """Else a signal to its group is one to bwrap's outer process, which must never get one."""
    script = "cut -d' ' -f6 /proc/self/stat; (: </dev/tty) 2>&1 | grep -c 'No such device'; "
    script += "trap : TERM; kill 0; echo on\n"
    outcome = run(bash(script), who)
    session, no_terminal, went_on = outcome.stdout.split()
    assert session != "0", "a session that began outside is shown as 0"
    assert (no_terminal, went_on) == ("1", "on")
    assert outcome.ended.reason is None


def test_a_job_takes_a_part_of_the_terminals_of_the_host(who: Who) -> None:
    program = """
import os
held = []
try:
    while len(held) < 300:
        held.append(os.open("/dev/ptmx", os.O_RDWR))
except OSError:
    pass
places = [line.split()[4] for line in open("/proc/self/mountinfo")]
print(len(held), "/dev/null" in places)
"""
    outcome = run(Job({"run.sh": "exec python3 p.py\n", "p.py": program}), who)
    # With bwrap's own /dev, whose nodes are bound one by one, nothing bounds them.
    assert outcome.stdout in ("128 False\n", "300 True\n")


def test_mounts_ignore_set_uid_bits_and_devices(who: Who) -> None:
    """Neither set-uid bits nor device nodes mean anything; what is not the job's is read-only."""
    outcome = run(bash("cat /proc/self/mountinfo\n"), who)
    mounts = {}
    for line in outcome.stdout.splitlines():
        fields = line.split()
        mounts[fields[4]] = {*fields[5].split(","), *fields[-1].split(",")}
    writable = {place for place, flags in mounts.items() if "ro" not in flags}
    prepared = "/dev/null" not in mounts  # then the nodes are in a read-only file system
    devices = set() if prepared else {f"/dev/{name}" for name in start_namespace.NODES}
    devices |= {f"/proc/{name}" for name in command.HIDDEN_PROC_FILES}  # covered by /dev/null
    assert writable == {"/job", "/tmp", "/dev/shm", "/dev/pts", "/proc", *devices}
    for place, flags in mounts.items():
        assert "nosuid" in flags, place
        assert "nodev" in flags or place in devices | {"/dev/pts"} | (
            {"/dev"} if prepared else set()
        ), place


# ---------------------------------------------------------------- the self-test


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda: without("--unshare-net"), "no_network"),
        (lambda: setattr(selftest, "real_uid", lambda _: 0), "not_root_on_host"),
    ],
    ids=["the host's network", "root"],
)
def test_a_sandbox_that_does_not_isolate_fails_its_self_test(
    who: Who, change: Callable[[], None], check: str
) -> None:
    async def tested(home: Path) -> str:
        async with opened(bash(""), home) as sandbox:
            with pytest.raises(SandboxBroken) as caught:
                await sandbox.self_test()
        return str(caught.value)

    def work(home: Path) -> str:
        change()
        return asyncio.run(tested(home))

    message = in_child(work, who)
    assert f"the sandbox does not hold on this host: {check} " in message


def test_without_a_filter_nothing_starts(who: Who) -> None:
    async def tested(home: Path) -> str:
        job = bash("echo ran\n", settings=replace(SETTINGS, start_timeout_s=0.3))
        async with opened(job, home) as sandbox:
            with pytest.raises(SandboxBroken) as caught:
                await start(sandbox, job, home)
        return str(caught.value)

    def work(home: Path) -> str:
        without("--seccomp", 2)
        return asyncio.run(tested(home))

    assert "not up within 0.3 s" in in_child(work, who)


# ---------------------------------------------------------------- what an earlier run left


def test_the_recorded_init_of_a_killed_agent_is_killed_at_the_next_start(who: Who) -> None:
    """Where the death of the agent did not: as when bwrap's outer process is killed with it."""
    job = bash("echo up; sleep 60\n", settings=replace(SETTINGS, disk_images=False))

    def work(home: Path) -> tuple[bool, bool]:
        without("--die-with-parent")
        init, _ = kill_agent(job, home, go=True)
        survived = not select.select([init], [], [], 0.3)[0]

        async def again() -> bool:
            async with opened(job, home) as sandbox:
                sandbox._clear_cgroups = no_groups  # type: ignore[method-assign]
                await sandbox.clear()
                return bool(select.select([init], [], [], 0)[0])

        return survived, asyncio.run(again())

    assert in_child(work, who) == (True, True)


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
    bundle = {"run.sh": "exec python3 p.py\n", "p.py": TAKE_OVER}
    job = replace(Job(bundle), settings=replace(SETTINGS, disk_images=False))

    def work(home: Path) -> tuple[str, bool]:
        init, message = kill_agent(job, home, go=True)
        died = bool(select.select([init], [], [], 5)[0])
        pidfd.kill(init)
        return message, died

    assert in_child(work, who) == ("No such file or directory\n", True)


STOPPED_EARLY = replace(
    Job({"run.sh": "echo ran >ran; echo up; sleep 60\n"}),
    settings=replace(SETTINGS, disk_images=False),
)


def killed_early(home: Path) -> tuple[bool, bool, list[str]]:
    """Kill an agent whose sandbox's init stands still just after it made the gate.

    Returns:
        Whether the init had set its parent-death signal by then; whether it died when it went
        on; what is in the job's directory.
    """
    init, bound = kill_after_report(lambda report: stop_the_init(home, report))
    pidfd.kill(init, signal.SIGCONT)
    died = bool(select.select([init], [], [], 5)[0])
    pidfd.kill(init)
    os.close(init)
    return bound == "True", died, [p.name for p in (home / "agent/work/attempt/job").iterdir()]


async def stop_the_init(home: Path, report: Callable[[str], object]) -> None:
    real, inits = pidfd.open_child, []

    def hunt(pid: int, parent: int) -> int | None:
        opened = real(pid, parent)
        children = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY)
        for _ in range(1_000_000):
            if os.pread(children, 20, 0):
                break
        os.kill(pid, signal.SIGSTOP)
        os.close(children)
        inits.append(pid)
        return opened

    pidfd.open_child = hunt
    async with opened(STOPPED_EARLY, home) as sandbox:
        waits = asyncio.Event()
        sleep = sandbox.clock.sleep

        async def noted(seconds: float) -> None:
            if seconds < 0.1:
                waits.set()
            await sleep(seconds)

        sandbox.clock.sleep = noted  # type: ignore[method-assign]
        starting = asyncio.create_task(start(sandbox, STOPPED_EARLY, home))
        waiting = asyncio.create_task(waits.wait())
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        bound = pidfd.has_seccomp_filter(inits[0])
        if starting.done():
            started = starting.result()
            started.process.go()
            await until(lambda: bool(started.stdout))
        report(f"{inits[0]} {bound}")
        await asyncio.Event().wait()


def test_the_gate_opens_only_after_the_init_has_its_parent_death_signal(who: Who) -> None:
    """The ready byte may come before the init sets its parent-death signal: a busy host may stop it
    there."""
    for _ in range(50):
        bound, died, files = in_child(killed_early, who)
        assert died
        if not bound:
            assert files == ["run.sh"]
            return
    pytest.fail("the init was never caught in between")


async def no_groups() -> None:
    """Does nothing, so that no cgroup is cleared."""


def test_the_gate_of_a_killed_agent_ends_even_if_nothing_kills_it(who: Who) -> None:
    """End of input is not ``go``."""
    job = bash("echo ran >ran\n", settings=replace(SETTINGS, disk_images=False))

    def work(home: Path) -> tuple[bool, list[str]]:
        without("--die-with-parent")
        init, _ = kill_agent(job, home, go=False)
        died = bool(select.select([init], [], [], 20)[0])
        return died, sorted(path.name for path in (home / "agent/work/attempt/job").iterdir())

    assert in_child(work, who) == (True, ["run.sh"])


# ---------------------------------------------------------------- the prepared root


def test_the_root_that_all_jobs_share_cannot_be_changed(who: Who) -> None:
    script = """
for place in / /etc /etc/ssl/certs /usr /usr/bin /var /dev; do
  touch $place/new 2>&1 | grep -o 'Read-only file system\\|Permission denied' || echo open $place
done
mkdir /opt 2>&1 | grep -o 'Read-only.*\\|Permission.*'; cat /etc/hosts >/dev/null && echo read
"""
    lines = run(bash(script), who).stdout.splitlines()
    assert lines[-1] == "read"
    assert len(lines) == 9
    assert set(lines[:-1]) == {"Read-only file system"}


def test_the_end_of_an_agent_removes_its_root_and_nothing_of_the_host(who: Who) -> None:
    """As root, the host's /usr is mounted in it."""

    async def shown(started: Started) -> bool:
        root = Path("/proc", str(started.process.pid), "root")
        return (root / "usr/bin/bash").exists()

    before = sorted(os.listdir("/usr/bin"))  # noqa: PTH208  # names
    outcome = run(bash("true", before_go=shown), who)
    assert outcome.extra is True or who == "user"
    assert {Path(path).name for path in outcome.left} <= {"work", "images", "cgroups"}
    assert sorted(os.listdir("/usr/bin")) == before  # noqa: PTH208


# ---------------------------------------------------------------- where chains are spawned


async def mounts_around(started: Started) -> tuple[list[str], str, str]:
    """Mount points where bwrap was started; the agent's namespace and folder afterwards."""
    fields = pidfd.stat_fields(started.process.pid)
    assert fields is not None
    lines = Path(f"/proc/{fields[1]}/mountinfo").read_text().splitlines()
    own = str(Path("/proc/thread-self/ns/mnt").readlink())
    return [line.split()[4] for line in lines], own, str(Path.cwd())


def test_a_root_agents_chain_is_spawned_where_few_mounts_are(who: Who) -> None:
    def work(home: Path) -> tuple[Outcome, str]:
        os.chdir(home)
        return asyncio.run(attempt(bash("true", before_go=mounts_around), home)), str(home)

    outcome, home = in_child(work, who)
    places, own, folder = outcome.extra
    assert folder == home
    if who == "root":
        known = ("/usr", "/etc", "/proc", "/dev", "/sys/fs/cgroup", "/run/ferryman", "/lib", "/bin")
        assert [place for place in places if place != "/" and not place.startswith(known)] == []
        assert len(places) < 40
        assert own != str(Path("/proc/self/ns/mnt").readlink())


def test_where_programs_need_more_of_the_host_all_mounts_stay(who: Who) -> None:
    """As on hosts that keep their programs in other folders."""

    def change() -> None:
        start_namespace.PROGRAMS = ()  # type: ignore[misc, assignment]

    outcome = run_after(change, bash("echo ran", before_go=mounts_around), who)
    assert outcome.stdout == "ran\n"
    own = Path("/proc/self/mountinfo").read_text().splitlines()
    assert {line.split()[4] for line in own} <= set(outcome.extra[0])


LOOK_AT_DEV = """
ls /dev | tr '\\n' ' '; echo
echo x >/dev/null && head -c 4 /dev/zero | wc -c && head -c 4 /dev/urandom | wc -c
touch /dev/new 2>/dev/null && echo written
stat -f -c %T /dev/shm && touch /dev/shm/new && echo shared
grep -c ' /dev .*,*ro[, ]' /proc/self/mountinfo
ls /dev/pts; sh -c 'exec 3<>/dev/ptmx; ls /dev/pts'
"""


def test_a_prepared_dev_is_read_only_and_has_what_bwrap_makes(who: Who) -> None:
    """The job of a root agent gets one; its root is nobody of the sandbox, so it cannot write to it
    whatever the mount says."""
    outcome = run(bash(LOOK_AT_DEV), who)
    assert outcome.stdout.splitlines() == [
        "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ",
        *("4", "4"),
        *("tmpfs", "shared"),
        "1",
        *("ptmx", "0", "ptmx"),
    ]


def test_where_no_device_nodes_can_be_made_bwrap_makes_dev(who: Who) -> None:
    def refuse(folder: Path, host: int) -> None:
        raise PermissionError(1, "no nodes", str(folder))

    def change() -> None:
        devices.make_nodes = refuse  # type: ignore[attr-defined]

    outcome = run_after(change, bash(LOOK_AT_DEV), who)
    assert outcome.stdout.splitlines()[-3:] == ["ptmx", "0", "ptmx"]
