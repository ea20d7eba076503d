"""The system calls that a job is refused, each group with its reason.

A list of refusals, not of permissions: bundles bring programs that we do not know, and
namespaces, dropped capabilities and no_new_privs already hold. The filter takes away what those
leave open, and the parts of the kernel that have been a way out before.
"""

from __future__ import annotations

import errno
import platform
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.bubblewrap import bpf
from client_agent.sandbox.bubblewrap.syscalls import AUDIT_ARCH, NUMBERS, X32


@dataclass(frozen=True, slots=True)
class Rule:
    """Calls refused for one reason."""

    calls: tuple[str, ...]
    error: int
    reason: str
    relaxation: str | None = None
    """An operator may lift the rule for a service by this name; None: never."""


RULES: Final = (
    Rule(
        ("unshare", "setns"),
        errno.EPERM,
        "new namespaces give a job capabilities inside them, and with those most of the "
        "kernel's attack surface; --disable-userns is the first lock, this is the second",
    ),
    Rule(
        ("clone3",),
        errno.ENOSYS,
        "its flags lie in memory, where a filter cannot see the namespaces asked for; C "
        "libraries then use clone, whose flags are checked",
    ),
    Rule(
        (
            *("mount", "umount2", "pivot_root", "chroot", "swapon", "swapoff"),
            *("fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr"),
            *("move_mount", "mount_setattr", "statmount", "listmount"),
        ),
        errno.EPERM,
        "the file system that the sandbox built is not to be changed, and listing its mounts "
        "shows the host's paths",
    ),
    Rule(
        ("ptrace", "kcmp", "pidfd_getfd"),
        errno.EPERM,
        "tracing the sandbox's init stopped the run for good, and would let a job forge its "
        "exit code",
        "ptrace",
    ),
    Rule(
        ("process_vm_readv", "process_vm_writev", "process_madvise"),
        errno.EPERM,
        "writes into other processes of the sandbox, its init included; MPI uses it for "
        "single copies",
        "process_vm",
    ),
    Rule(
        ("add_key", "request_key", "keyctl"),
        errno.EPERM,
        "keyrings belong to the uid, not to a namespace: jobs could meet there, and "
        "request_key starts a program on the host",
    ),
    Rule(("bpf",), errno.EPERM, "loads code into the kernel"),
    Rule(
        ("perf_event_open",),
        errno.EPERM,
        "measures other jobs through shared hardware; profilers need it",
        "perf",
    ),
    Rule(
        ("io_uring_setup", "io_uring_enter", "io_uring_register"),
        errno.ENOSYS,
        "does work that no filter sees, and was the way into the kernel in most exploits of "
        "its years",
        "io_uring",
    ),
    Rule(
        ("userfaultfd",),
        errno.EPERM,
        "stops the kernel in the middle of a copy, which makes races in it winnable",
        "userfaultfd",
    ),
    Rule(
        (
            *("mbind", "set_mempolicy", "get_mempolicy", "migrate_pages", "move_pages"),
            "set_mempolicy_home_node",
        ),
        errno.EPERM,
        "steers memory between nodes past the host's placement; OpenMP and MPI run times may "
        "ask for it",
        "numa",
    ),
    Rule(
        ("inotify_init", "inotify_init1", "inotify_add_watch"),
        errno.ENOSYS,
        "tells which programs of /usr the host and other jobs run; file watchers ask for it, "
        "most of them look by themselves where there is none",
        "inotify",
    ),
    Rule(
        ("ustat", "sysfs"),
        errno.ENOSYS,
        "ustat tells of any file system by its number, those of other jobs included, how full "
        "it is",
    ),
    Rule(
        ("name_to_handle_at", "open_by_handle_at"),
        errno.EPERM,
        "handles open files by number, outside every mount (the Shocker escape)",
    ),
    Rule(
        (
            *("init_module", "finit_module", "delete_module", "create_module"),
            *("kexec_load", "kexec_file_load", "reboot", "iopl", "ioperm"),
            *("acct", "quotactl", "quotactl_fd", "syslog", "lookup_dcookie", "vhangup"),
            *("settimeofday", "clock_settime", "nfsservctl", "fanotify_init"),
        ),
        errno.EPERM,
        "runs the host, not a job; a capability guards each, this guards the guard",
    ),
)

NAMESPACES: Final = (
    0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x20000
)
"""CLONE_NEW{CGROUP,UTS,IPC,USER,PID,NET,NS}."""
AF_UNIX: Final = 1
FAMILIES: Final = (AF_UNIX, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Others are not kept apart by namespaces (VSOCK reaches
the hypervisor) or are rarely used code (ALG, TIPC, CAN)."""
UNIX_SOCKETS: Final = "unix_sockets"
"""Relaxation: AF_UNIX for a job with the host's network. The names of abstract sockets belong to
the network's namespace, so such a job could call on the host's desktops and buses, with the rights
of the agent's user, and be handed descriptors of the host's files. Pairs are always allowed: they
lead nowhere."""
F_NOTIFY: Final = 1026
"""Watches a directory as inotify does; a command of fcntl."""
TERMINAL: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put words into the mouth of a terminal."""

RELAXATIONS: Final = frozenset(
    {UNIX_SOCKETS, *(rule.relaxation for rule in RULES if rule.relaxation is not None)}
)


@lru_cache(maxsize=32)
def program(
    allow: frozenset[str] = frozenset(), machine: str | None = None, *, network: bool = False
) -> bytes:
    """The filter, assembled.

    Args:
        allow: relaxations, of :data:`RELAXATIONS`.
        network: for a job in the host's network namespace.
        machine: as ``uname -m`` says; None: this one.

    Raises:
        SandboxBroken: an unknown relaxation, or a machine without a table of calls.
    """
    machine = machine or platform.machine()
    if machine not in AUDIT_ARCH:
        raise SandboxBroken(
            f"no seccomp filter for {machine}: the sandbox knows {', '.join(sorted(AUDIT_ARCH))}"
        )
    unknown = allow - RELAXATIONS
    if unknown:
        raise SandboxBroken(
            f"no seccomp relaxation is called {', '.join(sorted(unknown))}; "
            f"there are {', '.join(sorted(RELAXATIONS))}"
        )
    number = NUMBERS[machine]
    # a foreign ABI has other numbers for the same calls: every rule below would miss
    lines = [bpf.load(bpf.ARCH)]
    lines += bpf.unless_equal(AUDIT_ARCH[machine], [bpf.ret(bpf.KILL_PROCESS)])
    lines += [bpf.load(bpf.NR)]
    if machine == "x86_64":
        lines += bpf.if_at_least(X32, [bpf.ret(bpf.KILL_PROCESS)])
    for rule in RULES:
        if rule.relaxation is not None and rule.relaxation in allow:
            continue
        for call in rule.calls:
            if call in number:
                lines += bpf.if_equal(number[call], [bpf.ret(bpf.errno(rule.error))])
    refuse = [bpf.ret(bpf.errno(errno.EPERM))]
    permit = [bpf.ret(bpf.ALLOW)]
    lines += bpf.if_equal(
        number["clone"], [bpf.load(bpf.low(0)), *bpf.if_any_bit(NAMESPACES, refuse), *permit]
    )
    terminal = [line for request in TERMINAL for line in bpf.if_equal(request, refuse)]
    lines += bpf.if_equal(number["ioctl"], [bpf.load(bpf.low(1)), *terminal, *permit])
    if "inotify" not in allow:
        watch = bpf.if_equal(F_NOTIFY, refuse)
        lines += bpf.if_equal(number["fcntl"], [bpf.load(bpf.low(1)), *watch, *permit])
    for call in ("socket", "socketpair"):
        closed = {AF_UNIX} if network and UNIX_SOCKETS not in allow and call == "socket" else set()
        families = [
            line
            for family in FAMILIES
            if family not in closed
            for line in bpf.if_equal(family, permit)
        ]
        lines += bpf.if_equal(
            number[call],
            [bpf.load(bpf.low(0)), *families, bpf.ret(bpf.errno(errno.EAFNOSUPPORT))],
        )
    return bpf.assemble([*lines, *permit])
