"""Which limits this host can enforce, and why it cannot enforce the others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_agent.sandbox.base import HARD, SOFT
from client_agent.sandbox.kernel.cgroup_tree import (
    CONTROLLERS,
    CgroupsUnavailable,
    Hierarchy,
    find_hierarchy,
)
from client_agent.sandbox.kernel.disk_images import ImagePool
from client_agent.sandbox.kernel.loop_ext4 import DiskImagesUnavailable
from client_agent.sandbox.settings import SandboxSettings

PROBE_DISK: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Host:
    """What this host offers to enforce limits."""

    hierarchy: Hierarchy | None
    images: ImagePool | None
    advice: Sequence[str]
    """How to make soft limits hard."""

    @property
    def enforcement(self) -> Mapping[str, str]:
        """limit -> "hard" or "soft"."""
        controllers = set(self.hierarchy.folders) if self.hierarchy is not None else set()
        return {
            **{name: HARD if name in controllers else SOFT for name in ("memory", "pids", "cpu")},
            "disk": HARD if self.images is not None else SOFT,
            **dict.fromkeys(("wall", "log", "results", "files", "network", "isolation"), HARD),
        }

    @property
    def soft_limits(self) -> list[str]:
        return [name for name, how in self.enforcement.items() if how == SOFT]


def probe_host(
    name: str, image_folder: Path, mount_points: Path, settings: SandboxSettings, *, root: bool
) -> Host:
    """Try out cgroups and disk images. Blocking; makes the agent's own cgroup.

    Args:
        name: of the agent's cgroup.
        image_folder, mount_points: folders for disk images and their mount points.
    """
    advice: list[str] = []
    hierarchy: Hierarchy | None = None
    images: ImagePool | None = None
    try:
        hierarchy = find_hierarchy(name)
    except CgroupsUnavailable as problem:
        advice.append(f"memory, pids, cpu: {problem}")
    else:
        missing = [name for name in CONTROLLERS if name not in hierarchy.folders]
        if missing:
            advice.append(
                f"{', '.join(missing)}: the cgroup of this agent does not offer the controller: "
                "with systemd, set Delegate=memory pids cpu"
            )
    if not root:
        advice.append("disk: only an agent that runs as root can give each job a disk of its own")
    elif not settings.disk_images:
        advice.append("disk: set disk_images = true, which gives each job a disk of its own")
    else:
        images = ImagePool(image_folder, settings.inode_every)
        try:
            images.give_back(images.make(PROBE_DISK, mount_points), keep_idle=0)
        except DiskImagesUnavailable as problem:
            images = None
            advice.append(f"disk: {problem}")
    if images is None and os.statvfs(image_folder.parent).f_flag & os.ST_NOEXEC:
        advice.append(
            f"programs: {image_folder.parent} is mounted noexec, so jobs cannot execute what they "
            "bring or make: choose another data_dir, or mount it with exec"
        )
    return Host(hierarchy, images, tuple(advice))
