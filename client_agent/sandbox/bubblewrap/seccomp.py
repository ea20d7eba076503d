"""The system calls that the filter refuses to jobs, with the reason for each group.

It lists refused calls, not permitted ones, because bundles contain unknown programs. Namespaces,
dropped capabilities and no_new_privs already protect the host. The filter refuses what they still
permit, and parts of the kernel through which sandboxes were escaped before.
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
    """An operator may turn the rule off for a service by this name; None: never."""


RULES: Final = (
    Rule(
        ("unshare", "setns"),
        errno.EPERM,
        "in a namespace of its own a job has capabilities, and with those it reaches most of the "
        "kernel's attack surface; --disable-userns prevents that, too",
    ),
    Rule(
        ("clone3",),
        errno.ENOSYS,
        "its flags are in memory, so a filter cannot see whether it makes namespaces; C "
        "libraries then use clone, whose flags are checked",
    ),
    Rule(
        (
            *("mount", "umount2", "pivot_root", "chroot", "swapon", "swapoff"),
            *("fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr"),
            *("move_mount", "mount_setattr", "statmount", "listmount"),
        ),
        errno.EPERM,
        "a job must not change the sandbox's file system, and a list of its mounts shows paths of "
        "the host",
    ),
    Rule(
        ("ptrace", "kcmp", "pidfd_getfd"),
        errno.EPERM,
        "a job that traces the sandbox's init can stop it for ever, or forge the exit code",
        "ptrace",
    ),
    Rule(
        ("process_vm_readv", "process_vm_writev", "process_madvise"),
        errno.EPERM,
        "they write to other processes of the sandbox, also to its init; MPI uses them to copy "
        "data once",
        "process_vm",
    ),
    Rule(
        ("add_key", "request_key", "keyctl"),
        errno.EPERM,
        "keyrings belong to the uid, not to a namespace, so jobs could exchange data there; "
        "request_key starts a program on the host",
    ),
    Rule(("bpf",), errno.EPERM, "it loads code into the kernel"),
    Rule(
        ("perf_event_open",),
        errno.EPERM,
        "it measures other jobs through shared hardware; profilers need it",
        "perf",
    ),
    Rule(
        ("io_uring_setup", "io_uring_enter", "io_uring_register"),
        errno.ENOSYS,
        "a filter does not see its operations, and many exploits of the kernel used it",
        "io_uring",
    ),
    Rule(
        ("userfaultfd",),
        errno.EPERM,
        "it stops the kernel in the middle of a copy, which makes its race conditions easy to use",
        "userfaultfd",
    ),
    Rule(
        (
            *("mbind", "set_mempolicy", "get_mempolicy", "migrate_pages", "move_pages"),
            "set_mempolicy_home_node",
        ),
        errno.EPERM,
        "they override the host's placement of memory on NUMA nodes; OpenMP and MPI may use them",
        "numa",
    ),
    Rule(
        ("inotify_init", "inotify_init1", "inotify_add_watch"),
        errno.ENOSYS,
        "it shows which programs of /usr the host and other jobs run; file watchers use it, but "
        "most of them can poll instead",
        "inotify",
    ),
    Rule(
        ("ustat", "sysfs"),
        errno.ENOSYS,
        "ustat shows how full any file system is, also those of other jobs",
    ),
    Rule(
        ("name_to_handle_at", "open_by_handle_at"),
        errno.EPERM,
        "they open files of the host by number, outside all mounts (the Shocker exploit)",
    ),
    Rule(
        (
            *("init_module", "finit_module", "delete_module", "create_module"),
            *("kexec_load", "kexec_file_load", "reboot", "iopl", "ioperm"),
            *("acct", "quotactl", "quotactl_fd", "syslog", "lookup_dcookie", "vhangup"),
            *("settimeofday", "clock_settime", "nfsservctl", "fanotify_init"),
        ),
        errno.EPERM,
        "they administer the host; they need capabilities, and the filter is a second protection",
    ),
)

NAMESPACES: Final = (
    0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x20000
)
"""CLONE_NEW{CGROUP,UTS,IPC,USER,PID,NET,NS}."""
AF_UNIX: Final = 1
FAMILIES: Final = (AF_UNIX, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Network namespaces do not isolate all others (VSOCK
reaches the hypervisor), or their code is rarely used (ALG, TIPC, CAN)."""
UNIX_SOCKETS: Final = "unix_sockets"
"""Relaxation: AF_UNIX for a job with the host's network. Abstract sockets belong to the network
namespace, so such a job could connect to desktop and bus services of the host, as the agent's user,
and receive descriptors of the host's files. socketpair is always permitted: it makes no connection
to the outside."""
F_NOTIFY: Final = 1026
"""Command of fcntl that watches a directory, like inotify."""
TERMINAL: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which insert input into a terminal."""

RELAXATIONS: Final = frozenset(
    {UNIX_SOCKETS, *(rule.relaxation for rule in RULES if rule.relaxation is not None)}
)


@lru_cache(maxsize=32)
def program(
    allow: frozenset[str] = frozenset(), machine: str | None = None, *, network: bool = False
) -> bytes:
    """The assembled filter. Raises SandboxBroken if a relaxation is unknown, or if there is no
    table of system calls for the machine.

    Args:
        allow: relaxations, of :data:`RELAXATIONS`.
        network: for a job in the host's network namespace.
        machine: as printed by ``uname -m``; None: this one.
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
    # Another ABI has other numbers for the same calls, so no rule below would match.
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
        refused = {AF_UNIX} if network and UNIX_SOCKETS not in allow and call == "socket" else set()
        families = [
            line
            for family in FAMILIES
            if family not in refused
            for line in bpf.if_equal(family, permit)
        ]
        lines += bpf.if_equal(
            number[call],
            [bpf.load(bpf.low(0)), *families, bpf.ret(bpf.errno(errno.EAFNOSUPPORT))],
        )
    return bpf.assemble([*lines, *permit])
