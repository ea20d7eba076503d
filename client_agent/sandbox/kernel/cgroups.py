"""Cgroups: limits that the kernel enforces for all processes of an attempt, and its counters.

Version 2 is used if it offers its controllers to the agent, otherwise version 1. Each attempt has
groups of its own, so its counters start at zero and count nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.kernel.cgroup_tree import Hierarchy, enable_controllers, read_file
from shared.files.opened import closing_fd
from shared.wire import Limits

OVERHEAD_PIDS: Final = 4
"""Processes of the chain itself that count in the group: bwrap twice, and up to two more."""
PERIOD_US: Final = 100_000
LIMIT_MARGIN: Final = 1 << 16
"""When so few bytes are left, the kernel may have refused the next pages."""


class Cgroup:
    """The cgroups of one attempt, or of several, one after the other."""

    def __init__(self, hierarchy: Hierarchy, name: str, limits: Limits) -> None:
        """Make the groups and set their limits. Raises OSError; then nothing is left behind."""
        self._version, self._memory = hierarchy.version, limits.memory
        self._folder_of = {controller: top / name for controller, top in hierarchy.folders.items()}
        self.folders = list(dict.fromkeys(self._folder_of.values()))
        self._read: dict[tuple[str, str], int] = {}
        """File and key -> what was read last."""
        self._before: dict[tuple[str, str], int] = {}
        """What of that was before the last :meth:`restart_counters`."""
        self._peak_before: int | None = None
        made: list[Path] = []
        try:
            for folder in self.folders:
                _make_folder(folder, hierarchy.version)
                made.append(folder)
            for controller, file, value in limit_files(hierarchy.version, limits):
                if controller in self._folder_of:
                    _write_setting(f"{self._folder_of[controller]}/{file}", value)
        except BaseException:
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise

    @property
    def join_files(self) -> list[str]:
        """A process with a single thread enters the group by writing 0 to these files.

        Version 1: ``tasks``, because a thread that moves itself needs no lock. For
        ``cgroup.procs`` the kernel takes a lock against every fork and exit on the host, and waits
        for an RCU grace period before: 10 ms. Version 2 has only ``cgroup.procs``.
        """
        file = "tasks" if self._version == 1 else "cgroup.procs"
        return [f"{folder}/{file}" for folder in self.folders]

    def oom_kills(self) -> int:
        """Processes that the kernel killed because the group, a group above it, or the host ran
        out of memory."""
        file = "memory.events" if self._version == 2 else "memory.oom_control"
        return self._counter("memory", file, "oom_kill")

    def at_memory_limit(self) -> bool:
        """Whether the group itself reached its limit.

        In version 1, its peak shows that. ``memory.failcnt`` stays 0 on some kernels (such as
        6.18).
        """
        if self._version == 2:
            return self._counter("memory", "memory.events", "oom") > 0
        if "memory" not in self._folder_of:
            return False
        names = ("max_usage_in_bytes", "memsw.max_usage_in_bytes")
        folder = self._folder_of["memory"]
        peaks = [int(read_file(f"{folder}/memory.{name}") or 0) for name in names]
        return max(peaks) >= self._memory - LIMIT_MARGIN

    def refused_forks(self) -> int:
        """How often the kernel refused to start a process or thread."""
        return self._counter("pids", "pids.events", "max")

    def throttled(self) -> int:
        """Periods of 0.1 s in which the group had to wait for its share of CPU."""
        return self._counter("cpu", "cpu.stat", "nr_throttled")

    def cpu_s(self) -> float | None:
        """CPU time of all processes that were ever in the group; None: not counted."""
        if "cpu" not in self._folder_of:
            return None
        if self._version == 2:
            return self._counter("cpu", "cpu.stat", "usage_usec") / 1e6
        # there only where both controllers share a mount
        text = read_file(f"{self._folder_of['cpu']}/cpuacct.usage")
        return self._since(("cpuacct.usage", ""), int(text)) / 1e9 if text else None

    def peak_memory(self) -> int | None:
        """Peak memory in bytes, page cache included; None: not counted, or it was an earlier
        attempt's."""
        peak = self._peak()
        return None if peak == self._peak_before else peak

    def _peak(self) -> int | None:
        if "memory" not in self._folder_of:
            return None
        file = "memory.peak" if self._version == 2 else "memory.max_usage_in_bytes"
        text = read_file(f"{self._folder_of['memory']}/{file}")
        return int(text) if text else None

    def restart_counters(self) -> None:
        """Count from what was read last: another attempt begins in this group. All processes were
        dead by then, so nothing was counted since."""
        if self._version == 2:
            self.at_memory_limit()  # this one is not read at each end
        self._before = dict(self._read)
        # In version 2 a peak can be forgotten only for one descriptor.
        self._peak_before = self._peak() if self._version == 2 else None
        for name in ("max_usage_in_bytes", "memsw.max_usage_in_bytes"):
            path = self._folder_of.get("memory", Path()) / f"memory.{name}"
            with contextlib.suppress(OSError), closing_fd(os.open(path, os.O_WRONLY)) as fd:
                os.write(fd, b"0")

    def remove(self) -> None:
        """Remove the group; it must be empty. Raises OSError (EBUSY) if a process is still in
        it."""
        for folder in self.folders:
            remove_group(folder)

    def _counter(self, controller: str, file: str, key: str) -> int:
        if controller not in self._folder_of:
            return 0
        for line in read_file(f"{self._folder_of[controller]}/{file}").splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return self._since((file, key), int(value))
        return 0

    def _since(self, which: tuple[str, str], count: int) -> int:
        """What was counted since the last :meth:`restart_counters`."""
        self._read[which] = count
        return count - self._before.get(which, 0)


def limit_files(version: int, limits: Limits) -> list[tuple[str, str, str]]:
    """(controller, file, value), in the order in which they must be written. ``?`` marks an
    optional file."""
    pids = str(limits.pids + OVERHEAD_PIDS)
    quota = str(max(1000, round(limits.cpus * PERIOD_US)))
    memory = str(limits.memory)
    if version == 2:
        return [
            ("memory", "memory.max", memory),
            ("memory", "memory.swap.max?", "0"),
            # kill all processes at once: a job that lost one would be of no use
            ("memory", "memory.oom.group", "1"),
            ("pids", "pids.max", pids),
            ("cpu", "cpu.max", f"{quota} {PERIOD_US}"),
        ]
    return [
        ("memory", "memory.limit_in_bytes", memory),
        ("memory", "memory.memsw.limit_in_bytes?", memory),  # exists only with swap accounting
        ("memory", "memory.swappiness?", "0"),  # otherwise swapped memory is not counted
        ("pids", "pids.max", pids),
        ("cpu", "cpu.cfs_period_us", str(PERIOD_US)),
        ("cpu", "cpu.cfs_quota_us", quota),
    ]


def kill_group(folder: Path) -> bool:
    """Kill all processes in a group. Returns whether there were any."""
    switch = folder / "cgroup.kill"
    if not read_file(folder / "cgroup.procs"):
        return False
    if switch.exists():
        switch.write_text("1")
    else:
        pidfd.kill_listed(lambda: map(int, read_file(folder / "cgroup.procs").split()))
    return True


def remove_group(folder: Path) -> None:
    """Remove an empty group and the empty groups below it. Raises OSError."""
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
    """The groups in a group; none if another agent removed it while it was empty."""
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []


def _make_folder(folder: Path, version: int) -> None:
    for _ in range(5):
        try:
            folder.mkdir()
        except FileNotFoundError:  # another agent removed the parent while it was empty
            folder.parent.mkdir(exist_ok=True)
            if version == 2:
                enable_controllers(folder.parent)
        else:
            return
    raise FileNotFoundError(errno.ENOENT, "its parent is removed again and again", str(folder))


def _write_setting(file: str, value: str) -> None:
    path = file.removesuffix("?")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if path != file:
            return
        raise
    with closing_fd(fd):
        os.write(fd, value.encode())
