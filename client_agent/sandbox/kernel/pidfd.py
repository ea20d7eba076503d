"""Processes by descriptor: a pid can be reused between two looks at it, a pidfd cannot."""

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

_PR_SET_CHILD_SUBREAPER: Final = 36
_KILL_BATCH: Final = 64
"""Descriptors that a kill may take."""


def become_subreaper() -> None:
    """Let orphans of our children become our children, so that none escapes to the host's
    init."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise SandboxBroken(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")


def stat_fields(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` from the state on (0: state, 1: ppid, 19: start time in
    ticks).

    Returns:
        None if there is no such process.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()  # the name may hold spaces and parentheses


def has_seccomp_filter(pid: int) -> bool | None:
    """Whether a seccomp filter holds for a process; None: there is no such process."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            line = next((line for line in file if line.startswith("Seccomp:")), "Seccomp: 0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return line.split()[1] == "2"


def open_child(pid: int, parent: int) -> int | None:
    """A pidfd of ``pid``, the init of a pid namespace, if it is a child of ``parent``, or ours
    because ``parent`` has died.

    ``parent`` must be a child of ours that we have not reaped: then its own pid cannot have been
    reused, and the descriptor is of the right process for certain.

    Returns:
        None if that process is gone.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    fields = stat_fields(pid)
    parent_pid = None if fields is None else int(fields[1])
    if parent_pid == parent or (parent_pid == os.getpid() and _is_init(pid)):
        return fd
    os.close(fd)
    return None


def _is_init(pid: int) -> bool:
    """Whether it is the first process of a pid namespace below ours."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            line = next((line for line in file if line.startswith("NSpid:")), "")
    except (FileNotFoundError, ProcessLookupError):
        return False
    pids = line.split()[1:]
    return len(pids) > 1 and pids[-1] == "1"


def open_orphans(pipe: int) -> list[int]:
    """pidfds of our children whose standard error is a pipe.

    Args:
        pipe: number of its inode.
    """
    found = []
    for pid in _children(os.getpid()):
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            same = Path(f"/proc/{pid}/fd/2").stat().st_ino == pipe
        except OSError:  # it has died, or is nobody's that we may look at
            same = False
        if same:
            found.append(fd)
        else:
            os.close(fd)
    return found


def open_if_started_at(pid: int, start_time: str) -> int | None:
    """A pidfd of ``pid``, if it is the process that started at ``start_time``."""
    try:
        fd = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError):
        return None
    fields = stat_fields(pid)
    if fields is None or fields[19] != start_time:
        os.close(fd)
        return None
    return fd


def kill(pidfd: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal; a process that is already dead is no error."""
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
        try:
            for pid in pids[at : at + _KILL_BATCH]:
                with contextlib.suppress(ProcessLookupError):
                    pidfds[pid] = os.pidfd_open(pid)
            for pid in pidfds.keys() & set(listed()):
                kill(pidfds[pid])
        finally:
            for fd in pidfds.values():
                os.close(fd)


def is_our_zombie(pidfd: int) -> bool:
    """Whether it has died, and is ours to reap."""
    with contextlib.suppress(ChildProcessError):
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PIDFD, pidfd, flags) is not None
    return False


def reap(pidfd: int) -> None:
    """Take a process that has died out of the process table, if it became our child: an orphan."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)


def watch(pidfd: int) -> asyncio.Future[None]:
    """A future that is done when the process is dead; of an init: when its whole namespace is.

    The kernel marks the init of a pid namespace as dead only after it has killed and reaped
    everything else in it (``zap_pid_ns_processes``). The descriptor stays the caller's, who ends
    it with :func:`close`.
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
    """Close a descriptor that may be watched. The loop forgets it first: its number may be another
    attempt's the next moment."""
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)


def descendants(init: int) -> list[int]:
    """Pids of all processes below ``init``, not itself; a snapshot."""
    found: list[int] = []
    waiting = [init]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # names, not paths
    except (FileNotFoundError, ProcessLookupError):
        return []
    found: list[int] = []
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:  # noqa: PTH123
                found += [int(child) for child in file.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def signal_descendants(init: int, *numbers: signal.Signals) -> int:
    """Send signals to everything below ``init``, not to itself.

    Returns:
        How many processes got them.
    """
    below = descendants(init)
    parents = {init, *below}
    reached = 0
    for pid in below:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            fields = stat_fields(pid)
            if fields is None or int(fields[1]) not in parents:
                continue  # it died, and its pid became a stranger's
            for number in numbers:
                kill(fd, number)
            reached += 1
        finally:
            os.close(fd)
    return reached
