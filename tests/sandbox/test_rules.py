"""The filter of system calls, run by an interpreter for both machines, and what bwrap is told that
no job could show."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.bubblewrap import command, seccomp
from client_agent.sandbox.bubblewrap.root_tree import RootTree
from client_agent.sandbox.bubblewrap.seccomp import AUDIT_ARCH, NUMBERS

MACHINES = ("x86_64", "aarch64")
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
NO, NO_FAMILY = ERROR | errno.EPERM, ERROR | errno.EAFNOSUPPORT
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def run(program: bytes, nr: int, arch: int, *args: int) -> int:
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
    return run(program, NUMBERS[machine][name], AUDIT_ARCH[machine], *args)


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
        assert run(program, 39, arch) == KILL
    if machine == "x86_64":  # x32's
        for nr in (0x40000000, 0x40000000 | 39, 0x40000000 | 165, 0xFFFFFFFF):
            assert run(program, nr, own) == KILL
    others = set(range(600)) - set(NUMBERS[machine].values())
    assert {run(program, nr, own) for nr in others} == {ALLOW}


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


# ---------------------------------------------------------------- what bwrap is told

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


@pytest.mark.parametrize("read_only", [[], [(Path("/opt/tools"), "/opt/tools")]])
def test_the_jobs_directory_is_the_last_mount_and_then_all_is_read_only(read_only: Any) -> None:
    """Below a directory that the job can write, bwrap would follow its symlinks to the host."""
    args = bwrap(read_only=read_only)
    at = args.index("--bind-fd")
    assert args[at : at + 3] == ["--bind-fd", "11", "/job"]
    places = ["/proc/fs", "/proc/1", "/dev", *(["/"] if read_only else [])]
    remounts = [word for place in places for word in ("--remount-ro", place)]
    assert args[at + 3 : at + 3 + len(remounts)] == remounts
    assert not MOUNTING & set(args[at + 3 :])
    assert not [arg for arg in args if arg.startswith("/job/")]
    if read_only:
        assert args[args.index("/opt/tools") - 1] == "--ro-bind"
    else:
        first = next(word for word in args if word in MOUNTING)
        assert args[args.index(first) :][:3] == ["--ro-bind", "/tree", "/"]


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
