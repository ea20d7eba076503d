"""The cgroup below which the groups of an agent's jobs are made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from shared.files.opened import read_now

CONTROLLERS: Final = ("memory", "pids", "cpu")


class CgroupsUnavailable(Exception):
    """Cgroups cannot be used on this host. The text says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The agent's own groups, parents of the attempts' groups."""

    version: int
    folders: Mapping[str, Path]
    """Controller -> the agent's own group. In version 2 it is the same one for all."""


def find_hierarchy(name: str, *, proc: Path = Path("/proc/self")) -> Hierarchy:
    """Make the parent of the attempts' groups: ``NAME`` below the group that the agent was started
    in, so that the limits of that group hold for its jobs. Raises CgroupsUnavailable.

    Version 2: that group must be delegated to the agent, or be the root. The agent's own processes
    move to a leaf beside ``NAME``, because a group that delegates controllers may hold no process.
    """
    own = _own_groups((proc / "mountinfo").read_text(), read_file(proc / "cgroup"))
    unified = own.get("cgroup2")
    if unified is not None:
        mount, group = unified
        offered = set(read_file(mount / "cgroup.controllers").split()) & set(CONTROLLERS)
        if offered and len(offered) >= len(own.keys() & set(CONTROLLERS)):
            return _find_v2(name, group)
    return _find_v1(name, {controller: group for controller, (_, group) in own.items()})


def _find_v1(name: str, own: Mapping[str, Path]) -> Hierarchy:
    folders: dict[str, Path] = {}
    for controller in CONTROLLERS:
        if controller not in own:
            continue
        folder = own[controller] / name
        try:
            folder.mkdir(exist_ok=True)
        except OSError as problem:
            raise CgroupsUnavailable(
                f"cannot make the cgroup {folder} ({problem.strerror}): start the agent as "
                "root, or use a host with cgroup v2 and systemd's Delegate=memory pids cpu"
            ) from problem
        folders[controller] = folder
    if not folders:
        raise CgroupsUnavailable(
            "no cgroup controllers are mounted: mount cgroup2 on /sys/fs/cgroup"
        )
    return Hierarchy(1, folders)


def _find_v2(name: str, own: Path) -> Hierarchy:
    if own.name == "agent" and read_file(own.parent / "cgroup.subtree_control"):
        own = own.parent  # a call in an earlier run moved the agent into the leaf
    help_text = (
        "run the agent as a systemd service with Delegate=memory pids cpu "
        "(or: systemd-run --user --scope -p Delegate=yes ferryman agent …)"
    )
    jobs = own / name
    try:
        if (own / "cgroup.type").exists():  # only the root has none, and it may hold processes
            leaf = own / "agent"
            leaf.mkdir(exist_ok=True)
            (leaf / "cgroup.procs").write_text("0")
        controllers = enable_controllers(own)
        jobs.mkdir(exist_ok=True)
        controllers &= enable_controllers(jobs)
    except OSError as problem:
        raise CgroupsUnavailable(
            f"the cgroup {own} cannot be divided by the agent ({problem.strerror}): {help_text}"
        ) from problem
    if not controllers:
        raise CgroupsUnavailable(
            f"the cgroup {own} has none of the controllers memory, pids, cpu: {help_text}"
        )
    return Hierarchy(2, dict.fromkeys((c for c in CONTROLLERS if c in controllers), jobs))


def enable_controllers(folder: Path) -> set[str]:
    """Enable the controllers for the groups below; those of ``CONTROLLERS`` that are offered.

    ``io`` is enabled, too, if it is offered: without a limit, the kernel shares the disks fairly
    between groups.
    """
    offered = set(read_file(folder / "cgroup.controllers").split())
    enabled = set(read_file(folder / "cgroup.subtree_control").split())
    for controller in sorted((offered & set(CONTROLLERS)) - enabled):
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    if "io" in offered - enabled:
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text("+io")
    return offered & set(CONTROLLERS)


def _own_groups(mountinfo: str, cgroup: str) -> dict[str, tuple[Path, Path]]:
    """Controller (or ``cgroup2``) -> mount point of its hierarchy, and the agent's group in it."""
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(",") if controllers else ["cgroup2"], path)
    groups: dict[str, tuple[Path, Path]] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, mount_point = before.split(" ")[3:5]
        names: Iterable[str] = ()
        if kind == "cgroup2":
            names = ("cgroup2",)
        elif kind == "cgroup":
            names = options.split(",")
        for name in names:
            own = PurePosixPath(paths.get(name, "/"))
            # a container may see only a part of the hierarchy
            inside = own.relative_to(root) if own.is_relative_to(root) else ""
            groups.setdefault(name, (Path(mount_point), Path(mount_point) / inside))
    return groups


def remove_empty_groups(hierarchy: Hierarchy) -> None:
    """Remove the empty groups of other agents. An agent that still runs makes its group again."""
    for folder in dict.fromkeys(hierarchy.folders.values()):
        for other in folder.parent.glob(f"{folder.name.partition('-')[0]}-*"):
            if other != folder:
                with contextlib.suppress(OSError):
                    other.rmdir()


def read_file(file: Path | str) -> str:
    """The text of a file; empty if it does not exist."""
    try:
        return read_now(str(file)).decode()
    except FileNotFoundError:
        return ""
