"""Cgroups: limits that the kernel enforces over all processes of an attempt, and its counters.

Version 2 where it offers controllers to us, else version 1. A group is made per attempt and per
hierarchy, and removed after it: counters start at zero and belong to nobody else.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.kernel.cgroup_tree import Hierarchy, enable_controllers, read_file
from shared.wire import Limits

OVERHEAD_PIDS: Final = 4
"""Processes of the chain itself that count in the group: bwrap twice, with room for two more."""
PERIOD_US: Final = 100_000
LIMIT_MARGIN: Final = 1 << 16
"""Bytes below the limit at which the kernel may have refused the next few pages."""


class Cgroup:
    """The cgroups of one attempt."""

    def __init__(self, hierarchy: Hierarchy, name: str, limits: Limits) -> None:
        """Make them and set their limits.

        Raises:
            OSError: nothing is left.
        """
        self._version, self._memory = hierarchy.version, limits.memory
        self._folder_of = {controller: top / name for controller, top in hierarchy.folders.items()}
        self.folders = list(dict.fromkeys(self._folder_of.values()))
        made: list[Path] = []
        try:
            for folder in self.folders:
                _make_folder(folder, hierarchy.version)
                made.append(folder)
            for controller, file, value in limit_files(hierarchy.version, limits):
                if controller in self._folder_of:
                    _write_setting(self._folder_of[controller] / file, value)
        except BaseException:
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise

    @property
    def join_files(self) -> list[str]:
        """Files that a process of a single thread enters the group by writing 0 to.

        Version 1: ``tasks``. A thread that moves itself needs no lock; for ``cgroup.procs`` the
        kernel takes one against every fork and exit on the host, and waits for an RCU grace
        period first: 10 ms. Version 2 has no such file for a group with controllers.
        """
        file = "tasks" if self._version == 1 else "cgroup.procs"
        return [str(folder / file) for folder in self.folders]

    def oom_kills(self) -> int:
        """Processes that the kernel killed for memory, whoever ran out of it: the group, a group
        above it, or the host."""
        file = "memory.events" if self._version == 2 else "memory.oom_control"
        return self._counter("memory", file, "oom_kill")

    def at_memory_limit(self) -> bool:
        """Whether the group itself met its limit.

        Version 1: as its peak shows; ``memory.failcnt`` stays 0 on some kernels (seen: 6.18).
        """
        if self._version == 2:
            return self._counter("memory", "memory.events", "oom") > 0
        if "memory" not in self._folder_of:
            return False
        names = ("max_usage_in_bytes", "memsw.max_usage_in_bytes")
        folder = self._folder_of["memory"]
        peaks = [int(read_file(folder / f"memory.{name}") or 0) for name in names]
        return max(peaks) >= self._memory - LIMIT_MARGIN

    def refused_forks(self) -> int:
        """How often a process or thread was refused."""
        return self._counter("pids", "pids.events", "max")

    def throttled(self) -> int:
        """Periods of 0.1 s in which the group had to wait for its share of CPU."""
        return self._counter("cpu", "cpu.stat", "nr_throttled")

    def cpu_s(self) -> float | None:
        """CPU time of everything that was ever in the group; None: not counted."""
        if "cpu" not in self._folder_of:
            return None
        if self._version == 2:
            return self._counter("cpu", "cpu.stat", "usage_usec") / 1e6
        # there only where both controllers share a mount
        text = read_file(self._folder_of["cpu"] / "cpuacct.usage")
        return int(text) / 1e9 if text else None

    def peak_memory(self) -> int | None:
        """The most that was used at once, in bytes, page cache included; None: not counted."""
        if "memory" not in self._folder_of:
            return None
        file = "memory.peak" if self._version == 2 else "memory.max_usage_in_bytes"
        text = read_file(self._folder_of["memory"] / file)
        return int(text) if text else None

    def remove(self) -> None:
        """Remove the group; it must be empty.

        Raises:
            OSError: EBUSY: something is still in it.
        """
        for folder in self.folders:
            remove_group(folder)

    def _counter(self, controller: str, file: str, key: str) -> int:
        if controller not in self._folder_of:
            return 0
        for line in read_file(self._folder_of[controller] / file).splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
        return 0


def limit_files(version: int, limits: Limits) -> list[tuple[str, str, str]]:
    """(controller, file, value) in the order in which they must be set. Optional files: ``?``."""
    pids = str(limits.pids + OVERHEAD_PIDS)
    quota = str(max(1000, round(limits.cpus * PERIOD_US)))
    memory = str(limits.memory)
    if version == 2:
        return [
            ("memory", "memory.max", memory),
            ("memory", "memory.swap.max?", "0"),
            # all or nothing: a job that lost a process to the limit is not worth finishing
            ("memory", "memory.oom.group", "1"),
            ("pids", "pids.max", pids),
            ("cpu", "cpu.max", f"{quota} {PERIOD_US}"),
        ]
    return [
        ("memory", "memory.limit_in_bytes", memory),
        ("memory", "memory.memsw.limit_in_bytes?", memory),  # there only with swap accounting
        ("memory", "memory.swappiness?", "0"),  # without it, what is swapped out is not counted
        ("pids", "pids.max", pids),
        ("cpu", "cpu.cfs_period_us", str(PERIOD_US)),
        ("cpu", "cpu.cfs_quota_us", quota),
    ]


def kill_group(folder: Path) -> bool:
    """Kill everything in a group that an earlier run left.

    Returns:
        Whether there was anything.
    """
    switch = folder / "cgroup.kill"
    if not read_file(folder / "cgroup.procs"):
        return False
    if switch.exists():
        switch.write_text("1")
    else:
        pidfd.kill_listed(lambda: map(int, read_file(folder / "cgroup.procs").split()))
    return True


def remove_group(folder: Path) -> None:
    """Remove an empty group and the empty groups below it.

    Raises:
        OSError
    """
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as problem:
        if problem.errno != errno.EBUSY:
            raise
        for entry in subgroups(folder):
            remove_group(entry)
        folder.rmdir()


def subgroups(folder: Path) -> list[Path]:
    """The groups in a group; none where another agent tidied it away while it was empty."""
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []


def _make_folder(folder: Path, version: int) -> None:
    for _ in range(5):
        try:
            folder.mkdir()
        except FileNotFoundError:  # another agent tidied our own group away while it was empty
            folder.parent.mkdir(exist_ok=True)
            if version == 2:
                enable_controllers(folder.parent)
        else:
            return
    raise FileNotFoundError(errno.ENOENT, "its parent vanishes again and again", str(folder))


def _write_setting(file: Path, value: str) -> None:
    optional = file.name.endswith("?")
    path = file.with_name(file.name.removesuffix("?"))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if optional:
            return
        raise
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
