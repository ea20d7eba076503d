"""What a job could change of the driver, as the same user: limits, priority, processors; and of the
file systems in memory: modes and attributes of their top folders.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.pack.driver import SHM
from client_agent.sandbox.process.chain import TEMPORARY

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

IN_MEMORY: Final = (TEMPORARY[0], SHM)

Attributes = tuple[object, ...]


def attributes(pid: int) -> Attributes | None:
    """What the processes that it starts get from it; None: it cannot be read."""
    try:
        return (
            Path(f"/proc/{pid}/limits").read_bytes(),
            os.getpriority(os.PRIO_PROCESS, pid),
            os.sched_getscheduler(pid),
            frozenset(os.sched_getaffinity(pid)),
            *(_top_folder(f"/proc/{pid}/root{one}") for one in IN_MEMORY),
        )
    except OSError:
        return None


def _top_folder(path: str) -> tuple[object, ...]:
    status = Path(path).stat()
    return status.st_mode, status.st_uid, status.st_gid, frozenset(os.listxattr(path))


def reaped_cpu_s(pid: int) -> float:
    """CPU time of those of its children that have ended, and of theirs."""
    fields = pidfd.stat_fields(pid)
    return 0.0 if fields is None else sum(map(int, fields[13:15])) / _TICKS_PER_S


def is_alone(init: int) -> bool:
    """Whether the init of a pid namespace, which waits for a command, has no children: then its
    namespace has no other process, because orphans become its children."""
    return not pidfd.descendants(init)
