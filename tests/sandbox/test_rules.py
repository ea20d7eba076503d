"""What can be asked without a sandbox: the filter of system calls, run by an interpreter for both
machines; bwrap's arguments; the scripts of the gate, bwrap's status, pidfds, and supervision."""

import asyncio
import errno
import os
import re
import resource
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from client_agent.sandbox.base import Launch, SandboxBroken
from client_agent.sandbox.bubblewrap import command, seccomp
from client_agent.sandbox.bubblewrap.root_tree import RootTree
from client_agent.sandbox.bubblewrap.seccomp import AUDIT_ARCH, NUMBERS
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.limits.meter import Meter
from client_agent.sandbox.process.chain import JOIN, set_limits
from client_agent.sandbox.process.gate import GO, Gate
from client_agent.sandbox.process.log_capture import LogCapture
from client_agent.sandbox.process.pipes import StatusPipe
from client_agent.sandbox.process.supervisor import SpawnedProcesses, SupervisedProcess
from shared.variables import check_variable
from shared.wire import Reason
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.waiting import turns

MACHINES = ("x86_64", "aarch64")
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
NO, NO_FAMILY = ERROR | errno.EPERM, ERROR | errno.EAFNOSUPPORT
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def filtered(program: bytes, nr: int, arch: int, *args: int) -> int:
    """Classic BPF as the kernel runs it, for the instructions that a seccomp filter may use."""
    values = [*args, *([0] * (6 - len(args)))]
    data = struct.pack("<IIQ6Q", nr & 0xFFFFFFFF, arch, 0, *values)
    lines = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    at = accumulator = 0
    while True:
        code, yes, no, k = lines[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif code == 0x06:
            return int(k)
        else:
            taken = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}
            at += yes if taken[code] else no


def call(machine: str, name: str, *args: int, allow: str = "", network: bool = False) -> int:
    program = seccomp.program(frozenset(allow.split()), machine, network=network)
    return filtered(program, NUMBERS[machine][name], AUDIT_ARCH[machine], *args)


DANGEROUS = (
    "unshare setns clone3 mount umount2 pivot_root chroot swapon swapoff fsopen fsconfig fsmount "
    "fspick open_tree move_mount mount_setattr ptrace pidfd_getfd process_vm_readv "
    "process_vm_writev add_key request_key keyctl bpf perf_event_open io_uring_setup "
    "io_uring_enter io_uring_register userfaultfd mbind set_mempolicy get_mempolicy "
    "migrate_pages move_pages name_to_handle_at open_by_handle_at init_module finit_module "
    "delete_module kexec_load reboot acct quotactl syslog settimeofday clock_settime "
    "fanotify_init inotify_init1 inotify_add_watch"
)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_rule_refuses_its_calls_and_a_relaxation_permits_its_own(machine: str) -> None:
    calls = {(rule, name) for rule in seccomp.RULES for name in rule.calls}
    known = {(rule, name) for rule, name in calls if name in NUMBERS[machine]}
    old_x86_only = {"create_module", "iopl", "ioperm", "ustat", "sysfs", "inotify_init"}
    assert {name for _, name in calls - known} <= (old_x86_only if machine == "aarch64" else set())
    assert [name for name in DANGEROUS.split() if call(machine, name) == ALLOW] == []
    assert min(len(rule.reason) for rule in seccomp.RULES) > 15, "each says why"
    for allow in ("", *sorted(seccomp.RELAXATIONS)):
        for rule, name in known:
            expected = ALLOW if allow and rule.relaxation == allow else ERROR | rule.error
            assert call(machine, name, allow=allow) == expected, (allow, name)


THREAD = 0x3D0F00  # what pthread_create asks for


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_on_some_calls(machine: str) -> None:
    """The kernel uses 32 bits of them, and so must the filter."""
    cases: list[tuple[int, str, tuple[int, ...], dict[str, Any]]] = [
        (ALLOW, "clone", (THREAD,), {}),
        (ALLOW, "clone", (17,), {}),
        (ALLOW, "ioctl", (0x5412, 0x5401), {}),
        (ALLOW, "fcntl", (3, 1026), {"allow": "inotify"}),
    ]
    for bit in (0x20000, *(1 << n for n in range(25, 31))):  # namespaces
        cases += [(NO, "clone", (THREAD | bit,), {}), (NO, "clone", (bit | 17,), {})]
    for fd in (*range(17), *range(1024, 1040)):  # F_NOTIFY
        cases.append((NO if fd == 1026 else ALLOW, "fcntl", (3, fd), {}))
    for request in (0x5412, 0x541C):  # input into terminals
        cases += [(NO, "ioctl", (0, request | high), {}) for high in (0, 7 << 32)]
    for family in (*range(60), 1 << 16, 0xFFFFFFFF):
        left = ALLOW if family in (1, 2, 10, 16) else NO_FAMILY
        for name in ("socket", "socketpair"):
            cases += [(left, name, (family | high, 1), {}) for high in (0, 1 << 32)]
        # names of abstract Unix sockets are the network's: with the host's there are none
        left = NO_FAMILY if family == 1 else left
        cases.append((left, "socket", (family, 1), {"network": True}))
        cases.append((left, "socket", (family | 1 << 32, 1), {"network": True}))
    cases.append((ALLOW, "socketpair", (1, 1), {"network": True}))
    cases.append((ALLOW, "socket", (1, 1), {"network": True, "allow": seccomp.UNIX_SOCKETS}))
    wrong = [case for case in cases if call(machine, case[1], *case[2], **case[3]) != case[0]]
    assert wrong == []


@pytest.mark.parametrize("machine", MACHINES)
def test_foreign_calls_kill_and_all_others_are_permitted(machine: str) -> None:
    program, own = seccomp.program(frozenset(), machine), AUDIT_ARCH[machine]
    for arch in {0x40000003, 0x40000028, 0, *AUDIT_ARCH.values()} - {own}:
        assert filtered(program, 39, arch) == KILL
    if machine == "x86_64":  # x32's
        for nr in (0x40000000, 0x40000000 | 39, 0x40000000 | 165, 0xFFFFFFFF):
            assert filtered(program, nr, own) == KILL
    others = set(range(600)) - set(NUMBERS[machine].values())
    assert {filtered(program, nr, own) for nr in others} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"there is no {HEADERS[machine]}: the numbers of calls are not proved")
    found = re.findall(r"#define __NR3?2?6?4?_?(\w+)\s+(\d+)", HEADERS[machine].read_text())
    header = {name: int(nr) for name, nr in found}
    known = {name: nr for name, nr in NUMBERS[machine].items() if name in header}
    assert len(known) > 50
    assert known == {name: header[name] for name in known}


def test_what_no_filter_can_be_made_of_is_refused() -> None:
    with pytest.raises(SandboxBroken, match="no seccomp filter for riscv64"):
        seccomp.program(frozenset(), "riscv64")
    with pytest.raises(SandboxBroken, match="no seccomp relaxation is called mpi"):
        seccomp.program(frozenset({"mpi"}))
    with pytest.raises(ValueError, match="255"):
        seccomp.if_equal(1, [seccomp.ret(0)] * 256)
    with pytest.raises(ValueError, match="filter of"):
        seccomp.assemble([])


# ---------------------------------------------------------------- bwrap's arguments

TOOLS = command.Tools(sh="/bin/sh", bwrap="/b/bwrap", unshare="/b/unshare")
MOUNTING = {
    *("--ro-bind", "--ro-bind-try", "--bind", "--tmpfs", "--file", "--dir", "--symlink", "--proc"),
    *("--dev", "--ro-bind-data", "--bind-data", "--mqueue", "--dev-bind"),
}


def bwrap(**more: Any) -> list[str]:
    fds = command.Descriptors(args=10, job=11, status=12, seccomp=16)
    root = RootTree(Path("/tree"), ("/usr",), mounted=True, signature=())
    given = {"env": {"A": "1"}, "root": root, "scratch": 1000, **more}
    return command.bwrap_options(fds, **given)


def test_bwrap_never_runs_as_root_and_has_no_group_of_the_agent() -> None:
    with pytest.raises(ValueError, match="never run as the host's root"):
        command.chain(TOOLS, 10, ["x"], uid=0)
    chain = command.chain(TOOLS, 10, ["x"], uid=7, join=["/a"])
    change = ["/b/unshare", "--setuid=7", "--setgid=7", "--"]
    assert chain[4:] == ["/a", "--", *change, "/b/bwrap", "--args", "10", "--", "x"]


def test_the_jobs_directory_is_the_last_mount() -> None:
    """Below a directory that the job can write, bwrap would follow its symlinks to the host."""
    for read_only in ([], [(Path("/opt/tools"), "/opt/tools")]):
        args = bwrap(read_only=read_only)
        at = args.index("--bind-fd")
        assert args[at : at + 3] == ["--bind-fd", "11", "/job"]
        assert not MOUNTING & set(args[at + 3 :])
        assert not [arg for arg in args if arg.startswith("/job/")]


def test_protections_that_hold_twice_are_asked_for() -> None:
    """The agent's environment is empty, and its user has no capabilities; --block-fd fails open."""
    args = bwrap()
    assert {"--clearenv", "--cap-drop", "ALL"} <= set(args)
    assert not {"--block-fd", "--share-net"} & set(args)


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")])
def test_variables_cannot_contain_options(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="not a variable"):
        bwrap(env={name: value})


def test_operators_binds_are_not_below_what_the_job_can_write() -> None:
    for place in (
        *("/job", "/job/data", "/job/../job/x", "/tmp", "/tmp/x", "/var/tmp/x", "/proc/1", "/dev"),
        *("/dev/shm/x", "/sys", "/etc/passwd", "/", "//", "relative", "../x", ""),
    ):
        with pytest.raises(SandboxBroken, match="cannot mount on"):
            bwrap(read_only=[(Path("/opt"), place)])
    for place in ("/opt/tools", "/data", "/job2", "/tmpfoo", "/usr/share/x"):
        bwrap(read_only=[(Path("/src"), place)])


# ---------------------------------------------------------------- cgroups, limits and the gate


def run(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, **how)


def join(*words: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", JOIN, "join", *words)


def test_all_cgroups_are_joined_before_the_program_runs(tmp_path: Path) -> None:
    """Else it does not run."""
    files = [tmp_path / name for name in ("a b", "$(x)")]
    assert run(*join(*map(str, files), "--", "/bin/echo", "--", "ran")).stdout == "-- ran\n"
    assert [file.read_text() for file in files] == ["0\n", "0\n"]
    missing = str(tmp_path / "no/cgroup.procs")
    done = run(*join(missing, "--", "/bin/echo", "ran"))
    assert (done.returncode, done.stdout) == (126, "")


@each("own, jobs", [(300, "500\n"), (499, "500\n"), (500, "1000\n"), (1000, "1000\n")])
def test_the_oom_score_of_a_job_is_raised_and_never_lowered(own: int, jobs: str) -> None:
    """A container's runtime may have set what only CAP_SYS_RESOURCE could lower."""
    agent = f'echo {own} >/proc/self/oom_score_adj; exec "$@"'
    done = run("/bin/sh", "-c", agent, "agent", *join("--", "/bin/cat", "/proc/self/oom_score_adj"))
    assert (done.returncode, done.stdout, done.stderr) == (0, jobs, "")


LIMITS = {"nproc": 64, "nofile": 99, "core": 0, "as": 1 << 28, "fsize": 1 << 20, "cpu": 7}


def limits_of(process: subprocess.Popen[bytes]) -> dict[str, tuple[int, int]]:
    """Once it has written its ready byte."""
    assert process.stdout is not None
    assert process.stdout.read(1) == b"\n"
    kinds = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in LIMITS}
    found = {name: resource.prlimit(process.pid, kind) for name, kind in kinds.items()}
    process.communicate()
    return found


class AtGate:
    """A bash that has a gate before the script ``run.sh`` of a folder."""

    def __init__(self, folder: Path, limits: dict[str, int] | None = None) -> None:
        line, self.word = os.pipe()
        self.gate, self.script = Gate(limits or {}, line), folder / "run.sh"
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[self.gate.fd, line],
            env={"PATH": os.defpath, "word": "kept", **self.gate.env},
            cwd=folder,
        )
        os.close(line)

    def ends(self, script: str, word: bytes, variables: dict[str, str]) -> tuple[int, bytes, bytes]:
        """Exit code, and what it said, once it was given this script and this word."""
        assert self.process.stdout is not None
        assert self.process.stdout.read(1) == b"\n"
        self.script.write_text(script)  # it is opened only now
        self.gate.give(variables)
        os.write(self.word, word)
        return self.end()

    def end(self) -> tuple[int, bytes, bytes]:
        self.gate.close()
        os.close(self.word)
        out, err = self.process.communicate()
        return self.process.returncode, out, err


COMMAND = ["bash", "run.sh", "a b", "c"]


def test_limits_are_hard_and_set_before_the_ready_byte(tmp_path: Path) -> None:
    """By the gate, and by a driver in any shell."""
    expected = {name: (value, value) for name, value in LIMITS.items()}
    bash = AtGate(tmp_path, LIMITS)
    os.close(bash.word)
    assert limits_of(bash.process) == expected
    bash.gate.close()
    for shell in ("sh", "bash --posix", "dash"):
        script = set_limits(LIMITS, 512) + "echo"
        with subprocess.Popen([*shell.split(), "-c", script], stdout=subprocess.PIPE) as process:
            found = limits_of(process)
        assert found == expected, shell


def test_the_gate_opens_at_go_only(tmp_path: Path) -> None:
    for word in (b"", b"stop\n", b"go", b"GO\n", b"go x\n", b"\ngo\n"):
        ended = AtGate(tmp_path).ends("echo ran", word, {})
        assert ended == (125, b"", b""), word


VALUES = {
    "FERRYMAN_JOB_ID": "17",
    "FERRYMAN_ARRAY_LINE": 'it\'s $(touch ran) `touch ran` \\ "x" ; touch ran\t é  ',
    "FERRYMAN_SERVICE": "",
    "X": "\udcff",
    "LINES": "two\n\nlines\n",
    "LONG": "x" * 100_000,
    "word": "another",
}
LOOKS = """
echo "$0 $# $1 $2 [$(cat)] $SHLVL $- $BASHOPTS $SHELLOPTS $(ls -x /proc/self/fd)"
set | grep -a -i -E '(BASH_ENV|gate)='
env -0
"""


def test_behind_the_gate_a_script_finds_what_it_would_find_without(tmp_path: Path) -> None:
    """Its variables as they are, and nothing of the gate's."""
    code, said, why = AtGate(tmp_path).ends(LOOKS, b"go\nmore\n", VALUES)
    env = {"PATH": os.defpath, **VALUES}
    plain = subprocess.run(
        COMMAND, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    assert (code, why) == (0, plain.stderr)
    assert sorted(said.split(b"\0")) == sorted(plain.stdout.split(b"\0"))
    assert os.fsencode(f"X={VALUES['X']}") in said.split(b"\0")
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]


def test_the_file_that_an_operator_wants_bash_to_read_is_read_after_the_gate(
    tmp_path: Path,
) -> None:
    (tmp_path / "own").write_text("A=$B; echo own\n")
    for name, says in (("own", b"own\nb own\n"), ("missing", b" missing\n")):
        ended = AtGate(tmp_path).ends('echo "$A $BASH_ENV"', GO, {"BASH_ENV": name, "B": "b"})
        assert ended == (0, says, b"")


def test_no_variable_is_taken_that_bash_would_not_export_as_it_is(tmp_path: Path) -> None:
    for name in ("SHELLOPTS", "BASHOPTS", "BASH_FUNC_ls%%", "UID", "IFS", "A B", "$(id)", "1", ""):
        with pytest.raises(ValueError, match="variable"):
            check_variable(name, "x")
    # in this mode a bash would have no gate
    values = {"POSIXLY_CORRECT": "y", "BASH_VERSION": "1", "PS4": "$(touch ran)"}
    ended = AtGate(tmp_path).ends('echo "$POSIXLY_CORRECT $BASH_VERSION $PS4"', GO, values)
    assert ended == (0, b"y 1 $(touch ran)\n", b"")


async def read(*pieces: bytes) -> StatusPipe:
    """What is made of a status that arrives in these pieces."""
    source, write = os.pipe()
    os.set_blocking(source, False)
    status = StatusPipe(source)
    for piece in pieces:
        os.write(write, piece)
        await turns(3)
    held = [value for value in vars(status).values() if isinstance(value, bytes)]
    assert max(map(len, held)) <= 1 << 16
    os.close(write)
    await status.closed
    await status.child_pid
    status.stop()
    status.stop()
    return status


@each(
    "pieces, pid, code",
    [
        ([bytes([b]) for b in b'{ "child-pid": 4711, "net": 1 }\n{ "exit-code": 3 }\n'], 4711, 3),
        ([b'{"child-pid": 1}\n{"exit-code": 0}\n'], 1, 0),
        ([b'{"child-pid": 1}\n'], 1, None),
        ([b'{"child-pid": 1}\n{"exit-code": 3}'], 1, None),  # the line has not ended
        ([], None, None),
        ([b"x" * 60_000] * 40, None, None),
        *(
            ([garbage, b'{"child-pid": 7}\n'], 7, None)
            for garbage in (b"not json\n", b"[1]\n", b'"x"\n', b'{"exit-code": "0"}\n', b"\xff\n")
        ),
    ],
)
async def test_the_status_is_read_to_the_newline(pieces, pid, code) -> None:
    status = await read(*pieces)
    assert (status.child_pid.result(), status.exit_code) == (pid, code)


@contextmanager
def sleeping(count: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that sleep until they are killed, at the end at the latest."""
    sleepers = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(count)]
    try:
        yield sleepers
    finally:
        for one in sleepers:
            one.kill()
            one.wait()


def test_a_process_is_opened_by_its_parent_only() -> None:
    nobody = 2**22 + 1
    with sleeping() as (child,):
        fd = pidfd.open_child(child.pid, os.getpid())
        assert fd is not None
        os.close(fd)
        assert pidfd.open_child(child.pid, os.getppid()) is None
    assert pidfd.open_child(nobody, os.getpid()) is None
    assert pidfd.descendants(nobody) == []


@each(
    "lists, killed",
    [
        (["12", "12"], "12"),
        (["12", "1"], "1"),  # the second died, and its pid may be used again
        (["1", "12"], "1"),
        (["", ""], ""),
    ],
)
def test_only_processes_that_are_still_listed_are_killed(lists: list[str], killed: str) -> None:
    with sleeping(2) as (first, second):
        sleepers, answers = {"1": first, "2": second}, iter(lists)
        # a process of another pid namespace is shown as 0: that would be a signal to ourselves
        pidfd.kill_listed(lambda: [0, *(sleepers[n].pid for n in next(answers))])
        dead = {n for n in killed if sleepers[n].wait(10) == -signal.SIGKILL}
        assert dead == set(killed)
        assert {n for n, one in sleepers.items() if one.poll() is None} == set("12") - dead


async def test_closing_one_descriptor_ends_no_watch_of_the_next_with_its_number() -> None:
    with sleeping(2) as (first, second):
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


DEATH_S = 10.0


@each("pipes_end", [True, False])
async def test_who_dies_at_the_last_moment_is_dead_for_certain(pipes_end, monkeypatch) -> None:
    """What is waited for after that, as its pipes, has as much time again and no more."""
    monkeypatch.setattr(pidfd, "kill", lambda *_: None)
    clock, closed = SimClock(), asyncio.get_running_loop().create_future()
    log = cast("LogCapture", mock.Mock(closed=closed, truncated=False, store_error="no room"))
    with sleeping() as (process,):
        outer, init, seen = (os.pidfd_open(process.pid) for _ in range(3))
        watch = pidfd.watch(outer)
        spawned = SpawnedProcesses(process, outer, watch, process.pid, init, -1, None, log, log)
        launch = Launch(["x"], {}, 1000.0, 100.0, Path("out"), Path("err"))
        meter = Meter([], clock, 0.5, threading.Event())
        supervised = SupervisedProcess(spawned, launch, meter, clock, DEATH_S)
        supervised.stop(Reason.TIMEOUT, "too long", grace=False)
        await clock.advance(DEATH_S - 0.1)
        dead = pidfd.watch(seen)
        os.kill(process.pid, signal.SIGKILL)  # Popen.kill might reap it
        await dead
        pidfd.close(seen)
        await turns(3)
        await clock.advance(DEATH_S - 0.1)
        if pipes_end:
            closed.set_result(None)
        else:
            await clock.advance(0.2)
        ended = await supervised.wait()
    expected = (True, Reason.TIMEOUT) if pipes_end else (False, Reason.AGENT_ERROR)
    assert (ended.certain, ended.reason) == expected
    names = ("stdout", "stderr")
    assert ended.warnings == tuple(f"log_lost: {one} could not be stored: no room" for one in names)
