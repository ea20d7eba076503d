"""The system calls that the filter refuses to jobs, with the reason for each group.

It lists refused calls, not permitted ones, because bundles contain unknown programs. Namespaces,
dropped capabilities and no_new_privs already protect the host. The filter refuses what they still
permit, and parts of the kernel through which sandboxes were escaped before.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from client_agent.sandbox.base import SandboxBroken

AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32: Final = 0x40000000
"""Calls with this bit use the x32 ABI, which has the same AUDIT_ARCH as x86_64."""

_TABLE: Final = """
ioctl                    16       29
socket                   41      198
socketpair               53      199
clone                    56      220
fcntl                    72       25
ptrace                  101      117
syslog                  103      116
ustat                   136        -
sysfs                   139        -
vhangup                 153       58
pivot_root              155       41
chroot                  161       51
acct                    163       89
settimeofday            164      170
mount                   165       40
umount2                 166       39
swapon                  167      224
swapoff                 168      225
reboot                  169      142
iopl                    172        -
ioperm                  173        -
create_module           174        -
init_module             175      105
delete_module           176      106
quotactl                179       60
nfsservctl              180       42
lookup_dcookie          212       18
clock_settime           227      112
mbind                   237      235
set_mempolicy           238      237
get_mempolicy           239      236
kexec_load              246      104
add_key                 248      217
request_key             249      218
keyctl                  250      219
inotify_init            253        -
inotify_add_watch       254       27
migrate_pages           256      238
unshare                 272       97
move_pages              279      239
inotify_init1           294       26
perf_event_open         298      241
fanotify_init           300      262
name_to_handle_at       303      264
open_by_handle_at       304      265
setns                   308      268
process_vm_readv        310      270
process_vm_writev       311      271
kcmp                    312      272
finit_module            313      273
kexec_file_load         320      294
bpf                     321      280
userfaultfd             323      282
io_uring_setup          425      425
io_uring_enter          426      426
io_uring_register       427      427
open_tree               428      428
move_mount              429      429
fsopen                  430      430
fsconfig                431      431
fsmount                 432      432
fspick                  433      433
clone3                  435      435
pidfd_getfd             438      438
process_madvise         440      440
mount_setattr           442      442
quotactl_fd             443      443
set_mempolicy_home_node    450      450
statmount               457      457
listmount               458      458
open_tree_attr          467      467
"""
"""Name, number on x86_64, number on aarch64; "-": it has no such call. Since Linux 5.0, new calls
have the same number on all architectures."""

_ROWS: Final = [line.split() for line in _TABLE.split("\n") if line]

NUMBERS: Final[dict[str, dict[str, int]]] = {
    machine: {row[0]: int(row[column]) for row in _ROWS if row[column] != "-"}
    for column, machine in enumerate(("x86_64", "aarch64"), start=1)
}


Instruction: TypeAlias = tuple[int, int, int, int]
"""Code, jump if true, jump if false (both: how many instructions to skip), operand."""

NR: Final = 0
ARCH: Final = 4
"""Offsets in ``struct seccomp_data``."""

ALLOW: Final = 0x7FFF0000
KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000

_LD_ABS: Final = 0x20
_JEQ: Final = 0x15
_JGE: Final = 0x35
_JSET: Final = 0x45
_RET: Final = 0x06


def low(argument: int) -> int:
    """Offset of the low 32 bits of a system call's argument on a little-endian machine."""
    return 16 + 8 * argument


def load(offset: int) -> Instruction:
    return (_LD_ABS, 0, 0, offset)


def ret(action: int) -> Instruction:
    return (_RET, 0, 0, action)


def refusal(number: int) -> int:
    """The action that refuses a call with this error."""
    return _ERRNO | number


def if_equal(value: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Run ``body`` if the accumulator is ``value``, otherwise skip it."""
    return [(_JEQ, 0, _short(body), value), *body]


def unless_equal(value: int, body: Sequence[Instruction]) -> list[Instruction]:
    return [(_JEQ, _short(body), 0, value), *body]


def if_at_least(value: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Unsigned comparison."""
    return [(_JGE, 0, _short(body), value), *body]


def if_any_bit(mask: int, body: Sequence[Instruction]) -> list[Instruction]:
    return [(_JSET, 0, _short(body), mask), *body]


def assemble(program: Sequence[Instruction]) -> bytes:
    """The ``struct sock_filter`` array that bwrap's ``--seccomp FD`` reads. Raises ValueError if
    it is longer than the kernel takes (4096)."""
    if not 0 < len(program) <= 4096:
        raise ValueError(f"a filter of {len(program)} instructions")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _short(body: Sequence[Instruction]) -> int:
    if len(body) > 255:
        raise ValueError("a jump of more than 255 instructions")
    return len(body)


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
    lines = [load(ARCH)]
    lines += unless_equal(AUDIT_ARCH[machine], [ret(KILL_PROCESS)])
    lines += [load(NR)]
    if machine == "x86_64":
        lines += if_at_least(X32, [ret(KILL_PROCESS)])
    for rule in RULES:
        if rule.relaxation is not None and rule.relaxation in allow:
            continue
        for call in rule.calls:
            if call in number:
                lines += if_equal(number[call], [ret(refusal(rule.error))])
    refuse = [ret(refusal(errno.EPERM))]
    permit = [ret(ALLOW)]
    lines += if_equal(number["clone"], [load(low(0)), *if_any_bit(NAMESPACES, refuse), *permit])
    terminal = [line for request in TERMINAL for line in if_equal(request, refuse)]
    lines += if_equal(number["ioctl"], [load(low(1)), *terminal, *permit])
    if "inotify" not in allow:
        watch = if_equal(F_NOTIFY, refuse)
        lines += if_equal(number["fcntl"], [load(low(1)), *watch, *permit])
    for call in ("socket", "socketpair"):
        refused = {AF_UNIX} if network and UNIX_SOCKETS not in allow and call == "socket" else set()
        families = [
            line
            for family in FAMILIES
            if family not in refused
            for line in if_equal(family, permit)
        ]
        lines += if_equal(number[call], [load(low(0)), *families, ret(refusal(errno.EAFNOSUPPORT))])
    return assemble([*lines, *permit])
