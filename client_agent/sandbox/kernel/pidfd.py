"""Processes by descriptor: the kernel can use a pid again for another process, but not a pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import SandboxBroken
from shared.files.opened import closing_fd, read_now

_PR_SET_CHILD_SUBREAPER: Final = 36
_KILL_BATCH: Final = 64
"""Pidfds that are open at the same time for a kill."""


_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make orphans of the agent's descendants its children, not children of the host's init."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise SandboxBroken(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")


def stat_fields(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` from the state on (0: state, 1: ppid, 19: start time in
    ticks). Returns None if there is no such process."""
    try:
        text = read_now(f"/proc/{pid}/stat").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()  # the name may hold spaces and parentheses


def has_seccomp_filter(pid: int) -> bool | None:
    """Whether a process has a seccomp filter; None: there is no such process."""
    mode = status_field(pid, "Seccomp:")
    return None if mode is None else mode == ["2"]


def status_field(pid: int, key: str) -> list[str] | None:
    """The values of a line of ``/proc/PID/status``; None: there is no such process."""
    try:
        lines = read_now(f"/proc/{pid}/status").decode(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((line for line in lines if line.startswith(key)), key).split()[1:]


def open_child(pid: int, parent: int) -> int | None:
    """A pidfd of ``pid``, the init of a pid namespace, if it is a child of ``parent``, or of this
    process because ``parent`` is dead. Returns None if that process is gone.

    ``parent`` must be a child of this process that is not reaped yet. So its pid was not used
    again, and the pidfd is certainly of the right process.
    """

    def is_child(pid: int) -> bool:
        fields = stat_fields(pid)
        parent_pid = None if fields is None else int(fields[1])
        return parent_pid == parent or (parent_pid == os.getpid() and _is_init(pid))

    return _open_if(is_child, pid)


def _is_init(pid: int) -> bool:
    """Whether it is the first process of a pid namespace below this one."""
    pids = status_field(pid, "NSpid:") or []
    return len(pids) > 1 and pids[-1] == "1"


def open_orphans(pipe: int) -> list[int]:
    """pidfds of children of this process whose standard error is a given pipe.

    Args:
        pipe: inode number of the pipe.
    """

    def is_orphan(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/fd/2").stat().st_ino == pipe
        except OSError:  # it is dead, or its descriptors may not be read
            return False

    pidfds = (_open_if(is_orphan, pid) for pid in _children(os.getpid()))
    return [fd for fd in pidfds if fd is not None]


def open_if_started_at(pid: int, start_time: str) -> int | None:
    """A pidfd of ``pid``, if it is the process that started at ``start_time``."""

    def started_then(pid: int) -> bool:
        fields = stat_fields(pid)
        return fields is not None and fields[19] == start_time

    return _open_if(started_then, pid)


def _open_if(is_wanted: Callable[[int], bool], pid: int) -> int | None:
    """A pidfd of ``pid``, if it is the wanted process. That is checked after the pidfd was opened:
    then the pid cannot be that of another process any more."""
    try:
        fd = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError):
        return None
    if is_wanted(pid):
        return fd
    os.close(fd)
    return None


def kill(pidfd: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal. It is no error if the process is dead."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def kill_listed(listed: Callable[[], Iterable[int]]) -> None:
    """Kill the processes on a list that the kernel keeps, such as that of a cgroup.

    The list is read again after a pidfd of each process was opened. Only processes that are still
    on it are killed, so a pid that was used again meanwhile is spared. A process outside our pid
    namespace has the pid 0 on the list.
    """
    pids = [pid for pid in listed() if pid > 0]
    for at in range(0, len(pids), _KILL_BATCH):
        pidfds: dict[int, int] = {}
        with contextlib.ExitStack() as opened:
            for pid in pids[at : at + _KILL_BATCH]:
                with contextlib.suppress(ProcessLookupError):
                    pidfds[pid] = opened.enter_context(closing_fd(os.pidfd_open(pid)))
            for pid in pidfds.keys() & set(listed()):
                kill(pidfds[pid])


def is_our_zombie(pidfd: int) -> bool:
    """Whether it is dead, and a child of this process that is not reaped yet."""
    with contextlib.suppress(ChildProcessError):
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PIDFD, pidfd, flags) is not None
    return False


def reap(pidfd: int) -> None:
    """Reap a dead process if it is a child of this process."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)


def watch(pidfd: int) -> asyncio.Future[None]:
    """A future that is done when the process is dead; of an init: when its whole namespace is.

    The kernel marks the init of a pid namespace as dead only after it has killed and reaped all
    other processes in it (``zap_pid_ns_processes``). The caller still owns the descriptor, and
    closes it with :func:`close`.
    """
    loop = asyncio.get_running_loop()
    dead: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        loop.remove_reader(pidfd)
        if not dead.done():
            dead.set_result(None)

    loop.add_reader(pidfd, on_readable)
    return dead


def close(pidfd: int) -> None:
    """Close a descriptor that may be watched. The event loop stops watching it before, because its
    number may be used again at once."""
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)


def descendants(init: int) -> list[int]:
    """Pids of all processes below ``init``, without itself; a snapshot."""
    pids: list[int] = []
    pending = [init]
    while pending:
        children = _children(pending.pop())
        pids += children
        pending += children
    return pids


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # names, not paths
    except (FileNotFoundError, ProcessLookupError):
        return []
    pids: list[int] = []
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:  # noqa: PTH123
                pids += [int(child) for child in file.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pids


def signal_descendants(init: int, *numbers: signal.Signals) -> int:
    """Send signals to all processes below ``init``, not to itself. Returns how many processes
    got them."""
    below = descendants(init)
    parents, reached = {init, *below}, 0

    def is_below(pid: int) -> bool:
        fields = stat_fields(pid)
        return fields is not None and int(fields[1]) in parents

    for pid in below:
        fd = _open_if(is_below, pid)
        if fd is not None:
            with closing_fd(fd):
                for number in numbers:
                    kill(fd, number)
            reached += 1
    return reached
