"""What a job can see, call and use from inside."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.sandbox.bubblewrap import root_tree
from tests.kit.kernel_features import offers
from tests.kit.real_sandbox import (
    MIB,
    SMALL,
    Job,
    Outcome,
    Started,
    Who,
    attempt,
    in_child,
    run,
)

HELLO = Job({"run.sh": "echo hello\n"})


def run_here(job: Job, home: Path) -> Outcome:
    return asyncio.run(attempt(job, home))


CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for name, nr, *args in [
    ("keyctl", 250, 0, -3), ("add_key", 248, b"user", b"x", b"y", 1, -3), ("bpf", 321, 0, 0, 0),
    ("io_uring_setup", 425, 1, 0), ("ptrace", 101, 16, 1, 0, 0), ("clone3", 435, 0, 0),
    ("perf_event_open", 298, 0, 0, 0, 0, 0), ("userfaultfd", 323, 1), ("setns", 308, 0, 0),
    ("process_vm_readv", 310, 1, 0, 0, 0, 0, 0), ("open_by_handle_at", 304, 0, 0, 0),
    ("move_pages", 279, 0, 0, 0, 0, 0, 0), ("init_module", 175, 0, 0, 0),
    ("inotify_init1", 294, 0), ("inotify_init", 253), ("fcntl", 72, 0, 1026, 1),
    ("ustat", 136, os.stat("/tmp").st_dev, ctypes.create_string_buffer(64)), ("sysfs", 139, 3),
    ("unshare", 272, 0x10000000), ("clone", 56, 0x10000011, 0, 0, 0, 0),
]:
    ctypes.set_errno(0)
    got = libc.syscall(nr, *args)
    print(name, got if got >= 0 else os.strerror(ctypes.get_errno()))
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="not x86_64: refused calls are not proved"
)
def test_dangerous_system_calls_are_refused(who: Who) -> None:
    outcome = run(Job({"run.sh": "exec python3 calls.py\n", "calls.py": CALLS}), who)
    results = dict(line.split(" ", 1) for line in outcome.stdout.splitlines())
    enosys = {"io_uring_setup", "clone3", "inotify_init", "inotify_init1", "ustat", "sysfs"}
    assert len(results) == 20
    assert {name for name, text in results.items() if text == "Function not implemented"} == enosys
    assert {text for name, text in results.items() if name not in enosys} == {
        "Operation not permitted"
    }


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="not x86_64: refused calls are not proved"
)
def test_a_relaxation_permits_its_calls_again(who: Who) -> None:
    job = Job({"run.sh": "exec python3 calls.py\n", "calls.py": CALLS})
    outcome = run(replace(job, allow=frozenset({"io_uring", "process_vm", "inotify"})), who)
    results = dict(line.split(" ", 1) for line in outcome.stdout.splitlines())
    assert results["io_uring_setup"] == "Bad address"
    assert results["process_vm_readv"] != "Operation not permitted"
    assert results["inotify_init"].isdigit()
    assert results["fcntl"] == "Not a directory"
    assert results["ptrace"] == results["keyctl"] == "Operation not permitted"


CALLS_OUT = r"""
import socket
for family, address in ((socket.AF_UNIX, "\0{name}"), (socket.AF_INET, ("127.0.0.1", {port}))):
    try:
        with socket.socket(family) as s: s.connect(address)
        print("reached")
    except OSError as problem: print(problem.strerror)
a, b = socket.socketpair(); a.send(b"x"); print(b.recv(1))
"""


@pytest.mark.parametrize(
    ("network", "allow", "seen"),
    [
        (False, set(), ["Connection refused", "Connection refused"]),
        (True, set(), ["Address family not supported by protocol", "reached"]),
        (True, {"unix_sockets"}, ["reached", "reached"]),
    ],
)
def test_sockets_of_the_host_are_reached_only_with_its_network(
    who: Who, network: bool, allow: set[str], seen: list[str]
) -> None:
    """And abstract ones, where desktops and buses of the same user listen, not even so."""
    name = f"ferryman-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:
        unix.bind(f"\0{name}")
        tcp.bind(("127.0.0.1", 0))
        for listening in (unix, tcp):
            listening.listen()
        program = CALLS_OUT.format(name=name, port=tcp.getsockname()[1])
        job = Job({"run.sh": "exec python3 p.py\n", "p.py": program}, allow=frozenset(allow))
        limits = SMALL.model_copy(update={"network": network})
        outcome = run(replace(job, limits=limits), who)
    assert outcome.stdout.splitlines() == [*seen, "b'x'"]


INT80 = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
print("LEAK", ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="not x86_64: i386's entry is not proved")
def test_the_i386_entry_kills(who: Who) -> None:
    outcome = run(Job({"run.sh": "python3 c.py; echo $?\n", "c.py": INT80}), who)
    assert outcome.stdout == f"{128 + signal.SIGSYS}\n"


async def status_of_the_init(started: Started) -> str:
    return Path(f"/proc/{started.process.pid}/status").read_text()


def test_filter_and_no_new_privileges_hold_for_the_init_too(who: Who) -> None:
    script = "cat /proc/self/status\n"
    outcome = run(Job({"run.sh": script}, before_go=status_of_the_init), who)
    for status in (outcome.stdout, outcome.extra):
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert (fields["Seccomp"], fields["NoNewPrivs"]) == ("2", "1")
        assert (fields["CapBnd"], fields["CapPrm"]) == ("0" * 16, "0" * 16)


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
    if offers(who, "disk"):  # a bind shows where it came from, an image does not
        assert str(outcome.home) not in mounts
    assert "/run/ferryman" not in mounts


def test_files_of_proc_about_the_host_and_its_jobs_are_empty(who: Who) -> None:
    names = "keys cmdline diskstats locks partitions"
    outcome = run(Job({"run.sh": f"cd /proc; cat {names}; ls {names}; wc -l <cpuinfo\n"}), who)
    *there, cpus = outcome.stdout.split()
    assert set(there) == {name for name in names.split() if Path("/proc", name).exists()}
    assert int(cpus) > 0


def test_proc_does_not_show_the_free_space_of_other_jobs(who: Who) -> None:
    assert os.listdir("/proc/fs") != []  # noqa: PTH208  # the host's own is not empty
    script = "find /proc/fs -mindepth 1; mkdir /proc/fs/x 2>&1 | grep -o 'Read-only.*'\n"
    assert run(Job({"run.sh": script}), who).stdout == "Read-only file system\n"


def test_etc_contains_what_programs_need_and_no_account_of_the_host(who: Who) -> None:
    script = "find /etc -maxdepth 2 -mindepth 1; echo --; cat /etc/passwd /etc/group /etc/hosts\n"
    there, _, files = run(Job({"run.sh": script}), who).stdout.partition("--\n")
    generated = {"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/ssl"}
    bound = tuple(root_tree.COPIED)
    assert generated <= set(there.split())
    assert [path for path in there.split() if not path.startswith((*generated, *bound))] == []
    assert set(bound) <= {
        *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
        *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/localtime", "/etc/nsswitch.conf"),
    }
    assert files == root_tree.PASSWD + root_tree.GROUP + root_tree.HOSTS


def test_rlimits_are_in_force(who: Who) -> None:
    outcome = run(Job({"run.sh": "ulimit -Hn; ulimit -Hc; ulimit -Hu\n"}), who)
    nofile, core, nproc = map(int, outcome.stdout.split())
    assert (nofile, core) == (1024, 0)
    assert nproc == SMALL.pids + (64 if offers(who, "pids") else 0)


def test_with_soft_limits_rlimits_limit_cpu_time_and_file_size(who: Who) -> None:
    job = Job({"run.sh": "ulimit -Ht; ulimit -Hf\n"}, timeout_s=7.0)
    outcome = run(job, who)
    seconds, blocks = outcome.stdout.split()
    assert seconds == ("unlimited" if offers(who, "cpu") else "17")  # 7 s of one CPU, and 10
    assert blocks == ("unlimited" if offers(who, "disk") else str(SMALL.disk // 1024))


@pytest.mark.parametrize("limit", ["memory", "pids", "cpu", "disk"])
def test_a_limit_is_hard_if_the_kernel_supports_it(limit: str, who: Who) -> None:
    """Asked of the kernel, so that an agent that does not find its means fails here."""
    offered = offers(who, limit)
    outcome = run(Job({"run.sh": "true\n"}), who)
    assert outcome.enforcement[limit] == ("hard" if offered else "soft")
    if not offered and who == "root":
        pytest.skip(
            f"this machine's kernel offers no hard {limit} limit: that it holds is not proved"
        )


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


def test_the_kernel_kills_the_job_before_the_agent(who: Who) -> None:
    assert run(Job({"run.sh": "cat /proc/self/oom_score_adj\n"}), who).stdout == "500\n"


def may_bind_the_kernels_choice() -> bool:
    """What a process with CAP_SYS_RESOURCE sets, others cannot lower."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.split("CapEff:")[1].split()[0], 16) & 1 << 24)


def test_a_job_of_a_root_agent_cannot_lower_its_oom_score() -> None:
    if not may_bind_the_kernels_choice():
        pytest.skip("without CAP_SYS_RESOURCE: that oom_score_adj is held is not proved")
    script = "echo 0 >/proc/self/oom_score_adj; cat /proc/self/oom_score_adj\n"
    outcome = run(Job({"run.sh": script}), "root")
    assert outcome.stdout == "500\n"
    assert "Permission denied" in outcome.stderr


def test_a_job_starts_with_a_megabyte_of_memory(who: Who) -> None:
    outcome = run(replace(HELLO, limits=SMALL.model_copy(update={"memory": 24 * MIB})), who)
    assert outcome.ended.exit_code == 0
