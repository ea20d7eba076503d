"""Cgroups: limits that the kernel enforces over all processes of an attempt, and its counters.

Version 2 where it offers controllers to us, else version 1. A group is made per attempt and per
hierarchy, and removed after it: counters start at zero and belong to nobody else.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.sandbox import pidfd
from shared.wire import Limits

WANTED: Final = ("memory", "pids", "cpu")
OVERHEAD_PIDS: Final = 4
"""Processes of the chain itself that count in the group: bwrap twice, with room for two more."""
PERIOD_US: Final = 100_000


class NoCgroups(Exception):
    """Limits cannot be hard here. The text says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where the groups of one agent are made."""

    version: int
    folders: Mapping[str, Path]
    """Controller -> the agent's own group, parent of the attempts'. In version 2 all the same."""


class Group:
    """The cgroups of one attempt."""

    def __init__(self, hierarchy: Hierarchy, name: str, limits: Limits) -> None:
        """Make them and set their limits.

        Raises:
            OSError: nothing is left.
        """
        self._version = hierarchy.version
        self._at = {controller: top / name for controller, top in hierarchy.folders.items()}
        self.folders = list(dict.fromkeys(self._at.values()))
        made: list[Path] = []
        try:
            for folder in self.folders:
                _make(folder, hierarchy.version)
                made.append(folder)
            for controller, file, value in settings(hierarchy.version, limits):
                if controller in self._at:
                    _set(self._at[controller] / file, value)
        except BaseException:
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise

    @property
    def join(self) -> list[str]:
        """Files that a process of a single thread enters the group by writing 0 to.

        Version 1: ``tasks``. A thread that moves itself needs no lock; for ``cgroup.procs`` the
        kernel takes one against every fork and exit on the host, and waits for an RCU grace
        period first: 10 ms. Version 2 has no such file for a group with controllers.
        """
        file = "tasks" if self._version == 1 else "cgroup.procs"
        return [str(folder / file) for folder in self.folders]

    def oom_kills(self) -> int:
        """Processes that the kernel killed because the group was at its memory limit."""
        file = "memory.events" if self._version == 2 else "memory.oom_control"
        return self._counter("memory", file, "oom_kill")

    def refused_forks(self) -> int:
        """How often a process or thread was refused."""
        return self._counter("pids", "pids.events", "max")

    def throttled(self) -> int:
        """Periods of 0.1 s in which the group had to wait for its share of CPU."""
        return self._counter("cpu", "cpu.stat", "nr_throttled")

    def cpu_s(self) -> float | None:
        """CPU time of everything that was ever in the group; None: not counted."""
        if "cpu" not in self._at:
            return None
        if self._version == 2:
            return self._counter("cpu", "cpu.stat", "usage_usec") / 1e6
        text = _read(self._at["cpu"] / "cpuacct.usage")  # where both controllers share a mount
        return int(text) / 1e9 if text else None

    def peak_memory(self) -> int | None:
        """The most that was used at once, in bytes, page cache included; None: not counted."""
        if "memory" not in self._at:
            return None
        file = "memory.peak" if self._version == 2 else "memory.max_usage_in_bytes"
        text = _read(self._at["memory"] / file)
        return int(text) if text else None

    def remove(self) -> None:
        """Remove the group; it must be empty.

        Raises:
            OSError: EBUSY: something is still in it.
        """
        for folder in self.folders:
            remove_group(folder)

    def _counter(self, controller: str, file: str, key: str) -> int:
        if controller not in self._at:
            return 0
        for line in _read(self._at[controller] / file).splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
        return 0


def settings(version: int, limits: Limits) -> list[tuple[str, str, str]]:
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
    """Kill everything in a group that a former life left.

    Returns:
        Whether there was anything.
    """
    switch = folder / "cgroup.kill"
    if not _read(folder / "cgroup.procs"):
        return False
    if switch.exists():
        switch.write_text("1")
    else:
        pidfd.kill_listed(lambda: map(int, _read(folder / "cgroup.procs").split()))
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
        for entry in below(folder):
            remove_group(entry)
        folder.rmdir()


def below(folder: Path) -> list[Path]:
    """The groups in a group; none where another agent tidied it away while it was empty."""
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []


def tidy(hierarchy: Hierarchy) -> None:
    """Remove the empty groups of other agents: most are dead, the others make them again."""
    for folder in dict.fromkeys(hierarchy.folders.values()):
        for other in folder.parent.glob(f"{folder.name.partition('-')[0]}-*"):
            if other != folder:
                with contextlib.suppress(OSError):
                    other.rmdir()


def _make(folder: Path, version: int) -> None:
    for _ in range(5):
        try:
            folder.mkdir()
        except FileNotFoundError:  # another agent tidied our own group away while it was empty
            folder.parent.mkdir(exist_ok=True)
            if version == 2:
                _enable(folder.parent)
        else:
            return
    raise FileNotFoundError(errno.ENOENT, "its parent vanishes again and again", str(folder))


def find(name: str, *, proc: Path = Path("/proc/self")) -> Hierarchy:
    """Find, and make, the agent's own group.

    Version 1: ``/NAME`` in each hierarchy. Version 2: ``NAME`` below the group that the agent was
    started in, which must be delegated to it (or be the root); its own processes move to a leaf
    beside it, because a group that gives controllers away may hold none itself.

    Raises:
        NoCgroups
    """
    mounts = _mounts((proc / "mountinfo").read_text())
    unified = mounts.get("cgroup2")
    if unified is not None:
        offered = set(_read(unified / "cgroup.controllers").split())
        if offered & set(WANTED):
            return _find_v2(name, unified, proc)
    return _find_v1(name, mounts)


def _find_v1(name: str, mounts: Mapping[str, Path]) -> Hierarchy:
    folders: dict[str, Path] = {}
    for controller in WANTED:
        if controller not in mounts:
            continue
        folder = mounts[controller] / name
        try:
            folder.mkdir(exist_ok=True)
        except OSError as problem:
            raise NoCgroups(
                f"cannot make the cgroup {folder} ({problem.strerror}): start the agent as "
                "root, or use a host with cgroup v2 and systemd's Delegate=memory pids cpu"
            ) from problem
        folders[controller] = folder
    if not folders:
        raise NoCgroups("no cgroup controllers are mounted: mount cgroup2 on /sys/fs/cgroup")
    return Hierarchy(1, folders)


def _find_v2(name: str, mount: Path, proc: Path) -> Hierarchy:
    lines = (proc / "cgroup").read_text().splitlines()
    path = next((line.split(":", 2)[2] for line in lines if line.startswith("0:")), "/")
    own = mount / path.lstrip("/")
    if own.name == "agent" and _read(own.parent / "cgroup.subtree_control"):
        own = own.parent  # a former call moved us into the leaf
    help_text = (
        "run the agent as a systemd service with Delegate=memory pids cpu "
        "(or: systemd-run --user --scope -p Delegate=yes ferryman agent …)"
    )
    jobs = own / name
    try:
        if (own / "cgroup.type").exists():  # the root alone has none, and may hold processes
            leaf = own / "agent"
            leaf.mkdir(exist_ok=True)
            (leaf / "cgroup.procs").write_text("0")
        controllers = _enable(own)
        jobs.mkdir(exist_ok=True)
        controllers &= _enable(jobs)
    except OSError as problem:
        raise NoCgroups(
            f"the cgroup {own} is not the agent's to divide ({problem.strerror}): {help_text}"
        ) from problem
    if not controllers:
        raise NoCgroups(
            f"the cgroup {own} has none of the controllers memory, pids, cpu: {help_text}"
        )
    return Hierarchy(2, dict.fromkeys((c for c in WANTED if c in controllers), jobs))


def _enable(folder: Path) -> set[str]:
    """Give the controllers to the groups below."""
    offered = set(_read(folder / "cgroup.controllers").split()) & set(WANTED)
    for controller in sorted(offered - set(_read(folder / "cgroup.subtree_control").split())):
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    return offered


def _mounts(mountinfo: str) -> dict[str, Path]:
    """Controller (or ``cgroup2``) -> where its hierarchy is mounted."""
    found: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        place = Path(before.split(" ")[4])
        names: Iterable[str] = ()
        if kind == "cgroup2":
            names = ("cgroup2",)
        elif kind == "cgroup":
            names = options.split(",")
        for name in names:
            found.setdefault(name, place)
    return found


def _set(file: Path, value: str) -> None:
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


def _read(file: Path) -> str:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        return os.read(fd, 1 << 16).decode()
    finally:
        os.close(fd)
