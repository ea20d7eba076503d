"""The filter of system calls: rule 2.10 of the threat model."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import BOX, HOSTILE, PROCESS, Mutant, of

_SECCOMP: Final = "sandbox/bubblewrap/seccomp.py"
_INSIDE: Final = f"{PROCESS}sandbox_inside.py::test_"
_LAYERS: Final = f"{PROCESS}sandbox_layers.py::test_"
_CALLS: Final = f"{_INSIDE}dangerous_system_calls_are_refused"


def _refusal(what: str, calls: str, *tests: str) -> Mutant:
    return of("2.10", what, _SECCOMP, calls, "()", *(tests or (f"{_CALLS}[user]",)))


FILTER: Final[tuple[Mutant, ...]] = (
    of(
        "2.10",
        "foreign ABIs kill",
        _SECCOMP,
        "[ret(KILL_PROCESS)])\n    lines += [load(NR)]",
        "[ret(ALLOW)])\n    lines += [load(NR)]",
        f"{_INSIDE}the_i386_entry_kills",
    ),
    of(
        "2.10",
        "x32 calls kill",
        _SECCOMP,
        "if_at_least(X32, [ret(KILL_PROCESS)])",
        "if_at_least(X32, [ret(ALLOW)])",
        f"{BOX}bubblewrap/test_seccomp.py::test_x32_calls_kill",
    ),
    _refusal(
        "namespaces, without `--disable-userns`",
        '("unshare", "setns")',
        f"{_LAYERS}without_disable_userns_no_namespace_can_be_made_inside",
    ),
    _refusal("clone3", '("clone3",)'),
    of(
        "2.10",
        "clone with namespace flags",
        _SECCOMP,
        "*if_any_bit(NAMESPACES, refuse), ",
        "",
        f"{_CALLS}[user]",
        f"{BOX}bubblewrap/test_seccomp.py::test_clone_makes_no_namespace",
    ),
    of(
        "2.10",
        "mount and chroot, old and new",
        _SECCOMP,
        '*("mount", "umount2", "pivot_root", "chroot", "swapon", "swapoff"),',
        "",
        f"{BOX}bubblewrap/test_seccomp.py::test_every_dangerous_call_is_refused",
    ),
    _refusal("ptrace", '("ptrace", "kcmp", "pidfd_getfd")'),
    _refusal("process_vm", '("process_vm_readv", "process_vm_writev", "process_madvise")'),
    _refusal("keyrings", '("add_key", "request_key", "keyctl")'),
    _refusal("bpf", '("bpf",)'),
    _refusal("perf", '("perf_event_open",)'),
    _refusal("io_uring", '("io_uring_setup", "io_uring_enter", "io_uring_register")'),
    _refusal("userfaultfd", '("userfaultfd",)'),
    of(
        "2.10",
        "NUMA policy",
        _SECCOMP,
        '"migrate_pages", "move_pages"),',
        '"migrate_pages"),',
        f"{_CALLS}[user]",
    ),
    _refusal("inotify", '("inotify_init", "inotify_init1", "inotify_add_watch")'),
    _refusal("ustat and sysfs", '("ustat", "sysfs")'),
    of(
        "2.10",
        "fcntl's F_NOTIFY",
        _SECCOMP,
        "F_NOTIFY: Final = 1026",
        "F_NOTIFY: Final = 1027",
        f"{_CALLS}[user]",
        f"{BOX}bubblewrap/test_seccomp.py::test_fcntl_watches_no_directory",
    ),
    _refusal("file handles", '("name_to_handle_at", "open_by_handle_at")'),
    of(
        "2.10",
        "modules and what else runs the host",
        _SECCOMP,
        '*("init_module", ',
        "*(",
        f"{BOX}bubblewrap/test_seccomp.py::test_every_dangerous_call_is_refused",
    ),
    of(
        "2.10",
        "TIOCSTI and TIOCLINUX",
        _SECCOMP,
        "(0x5412, 0x541C)",
        "()",
        f"{BOX}bubblewrap/test_seccomp.py::test_input_cannot_be_inserted_into_terminals",
    ),
    of(
        "2.10",
        "sockets other than UNIX, INET, INET6, NETLINK",
        _SECCOMP,
        "FAMILIES: Final = (",
        "FAMILIES: Final = (40, ",
        f"{HOSTILE}[user-socket-families]",
    ),
)
