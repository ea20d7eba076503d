"""The filter, run by an interpreter: every rule refuses what it names, and nothing else."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.bubblewrap import seccomp
from client_agent.sandbox.bubblewrap.seccomp import AUDIT_ARCH, NUMBERS
from tests.kit.each import each

MACHINES = ("x86_64", "aarch64")
ALLOW, KILL = 0x7FFF0000, 0x80000000
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


def call(
    machine: str,
    name: str,
    *args: int,
    allow: frozenset[str] = frozenset(),
    network: bool = False,
) -> int:
    program = seccomp.program(allow, machine, network=network)
    return run(program, NUMBERS[machine][name], AUDIT_ARCH[machine], *args)


def refused(error: int) -> int:
    return 0x00050000 | error


@each("machine", MACHINES)
@each("rule", seccomp.RULES)
def test_every_call_of_every_rule_is_refused(machine: str, rule: seccomp.Rule) -> None:
    for name in rule.calls:
        if name in NUMBERS[machine]:
            assert call(machine, name) == refused(rule.error), name


DANGEROUS = (
    "unshare setns clone3 mount umount2 pivot_root chroot swapon swapoff fsopen fsconfig fsmount "
    "fspick open_tree move_mount mount_setattr ptrace pidfd_getfd process_vm_readv "
    "process_vm_writev add_key request_key keyctl bpf perf_event_open io_uring_setup "
    "io_uring_enter io_uring_register userfaultfd mbind set_mempolicy get_mempolicy "
    "migrate_pages move_pages name_to_handle_at open_by_handle_at init_module finit_module "
    "delete_module kexec_load reboot acct quotactl syslog settimeofday clock_settime "
    "fanotify_init inotify_init1 inotify_add_watch"
)


@each("machine", MACHINES)
@each("name", DANGEROUS.split())
def test_every_dangerous_call_is_refused(machine: str, name: str) -> None:
    assert call(machine, name) != ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_a_rule_is_known(machine: str) -> None:
    old_x86_only = {"create_module", "iopl", "ioperm", "ustat", "sysfs", "inotify_init"}
    named = {name for rule in seccomp.RULES for name in rule.calls}
    assert named - set(NUMBERS[machine]) <= (old_x86_only if machine == "aarch64" else set())


@each("rule", seccomp.RULES)
def test_every_rule_says_why(rule: seccomp.Rule) -> None:
    assert len(rule.reason) > 15


@each("machine", MACHINES)
@each("relaxation", sorted(seccomp.RELAXATIONS))
def test_a_relaxation_permits_its_own_calls_only(machine: str, relaxation: str) -> None:
    for rule in seccomp.RULES:
        for name in set(rule.calls) & set(NUMBERS[machine]):
            expected = ALLOW if rule.relaxation == relaxation else refused(rule.error)
            assert call(machine, name, allow=frozenset({relaxation})) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_everything_else_is_permitted(machine: str) -> None:
    special = {"clone", "fcntl", "ioctl", "socket", "socketpair"}
    named = {NUMBERS[machine][name] for name in NUMBERS[machine]}
    program = seccomp.program(frozenset(), machine)
    for nr in set(range(600)) - named:
        assert run(program, nr, AUDIT_ARCH[machine]) == ALLOW
    for name in special - {"socket", "socketpair"}:
        assert call(machine, name) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_fcntl_watches_no_directory(machine: str) -> None:
    for command in (*range(17), *range(1024, 1040)):
        notify = command == 1026
        assert call(machine, "fcntl", 3, command) == (refused(errno.EPERM) if notify else ALLOW)
    assert call(machine, "fcntl", 3, 1026, allow=frozenset({"inotify"})) == ALLOW


@each("machine", MACHINES)
@each("bit", [0x20000, *(1 << n for n in range(25, 31))])
def test_clone_makes_no_namespace(machine: str, bit: int) -> None:
    thread = 0x3D0F00  # what pthread_create asks for
    assert call(machine, "clone", thread) == ALLOW
    assert call(machine, "clone", thread | bit) == refused(errno.EPERM)
    assert call(machine, "clone", bit | 17) == refused(errno.EPERM)


@each("machine", MACHINES)
@each("family", [*range(60), 1 << 16, 0xFFFFFFFF])
def test_four_socket_families_are_left(machine: str, family: int) -> None:
    left = family in (1, 2, 10, 16)
    for name in ("socket", "socketpair"):
        expected = ALLOW if left else refused(errno.EAFNOSUPPORT)
        assert call(machine, name, family, 1) == expected
        # the kernel uses 32 bits of the argument, and so must the filter
        assert call(machine, name, family | (1 << 32), 1) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_with_the_hosts_network_there_are_no_unix_sockets(machine: str) -> None:
    """The names of abstract ones are the network's."""
    assert call(machine, "socket", 1, 1, network=True) == refused(errno.EAFNOSUPPORT)
    assert call(machine, "socket", 1 | 1 << 32, 1, network=True) == refused(errno.EAFNOSUPPORT)
    assert call(machine, "socketpair", 1, 1, network=True) == ALLOW
    allow = frozenset({seccomp.UNIX_SOCKETS})
    assert call(machine, "socket", 1, 1, network=True, allow=allow) == ALLOW
    for family in (2, 10, 16):
        assert call(machine, "socket", family, 1, network=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_input_cannot_be_inserted_into_terminals(machine: str) -> None:
    for request in (0x5412, 0x541C):
        assert call(machine, "ioctl", 0, request) == refused(errno.EPERM)
        assert call(machine, "ioctl", 0, request | (7 << 32)) == refused(errno.EPERM)
    assert call(machine, "ioctl", 0x5412, 0x5401) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_foreign_calls_kill(machine: str) -> None:
    program = seccomp.program(frozenset(), machine)
    for arch in {0x40000003, 0x40000028, 0, *AUDIT_ARCH.values()} - {AUDIT_ARCH[machine]}:
        assert run(program, 39, arch) == KILL


def test_x32_calls_kill() -> None:
    program = seccomp.program(frozenset(), "x86_64")
    for nr in (0x40000000, 0x40000000 | 39, 0x40000000 | 165, 0xFFFFFFFF):
        assert run(program, nr, AUDIT_ARCH["x86_64"]) == KILL


def test_unknown_machines_and_relaxations_are_refused() -> None:
    with pytest.raises(SandboxBroken, match="no seccomp filter for riscv64"):
        seccomp.program(frozenset(), "riscv64")
    with pytest.raises(SandboxBroken, match="no seccomp relaxation is called mpi"):
        seccomp.program(frozenset({"mpi"}))


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"there is no {HEADERS[machine]}: the numbers of calls are not proved")
    header_numbers = dict(
        re.findall(r"#define __NR3?2?6?4?_?(\w+)\s+(\d+)", HEADERS[machine].read_text())
    )
    known = {name: nr for name, nr in NUMBERS[machine].items() if name in header_numbers}
    assert len(known) > 50
    assert known == {name: int(header_numbers[name]) for name in known}


def test_jumps_that_are_too_long_are_refused() -> None:
    with pytest.raises(ValueError, match="255"):
        seccomp.if_equal(1, [seccomp.ret(0)] * 256)
    with pytest.raises(ValueError, match="filter of"):
        seccomp.assemble([])
