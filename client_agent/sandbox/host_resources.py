"""What the attempts of one agent share on this host: folders, threads, cgroups, disk images."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar

import structlog

from client_agent.sandbox.base import HARD, SOFT, SandboxSettings
from client_agent.sandbox.kernel import cgroups
from client_agent.sandbox.kernel.cgroup_tree import (
    CONTROLLERS,
    CgroupsUnavailable,
    Hierarchy,
    find_hierarchy,
)
from client_agent.sandbox.kernel.disk_images import ImagePool
from client_agent.sandbox.kernel.loop_ext4 import DiskImagesUnavailable
from client_agent.sandbox.kernel.work_folders import WorkFolders
from shared.clock import Clock

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


log: structlog.stdlib.BoundLogger = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")


class Removable(Protocol):
    """A quarantined workspace."""

    name: str

    def is_dead(self) -> bool: ...

    async def remove(self) -> None: ...


class HostResources:
    """Released by :meth:`close`.

    Args:
        home: the agent's directory. ``work/``, ``images/`` and ``quarantine/`` in it are used here.
    """

    def __init__(self, clock: Clock, home: Path, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.clock = clock
        self.separate_uids = os.geteuid() == 0
        """The agent is root: each job runs as the uid of its slot."""
        self.work_folders = WorkFolders(home, separate_uids=self.separate_uids)
        self._threads: ThreadPoolExecutor | None = None
        self.log_threads = ThreadPoolExecutor(2, "sandbox-logs")
        """Separate threads, because other work may take seconds."""
        self._host: Host | None = None
        self._removals: set[asyncio.Task[None]] = set()

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a thread that sees the mounts of :attr:`work_folders`."""
        if self._threads is None:
            _ = self.work_folders.base  # new threads inherit this thread's mount namespace
            self._threads = ThreadPoolExecutor(4, "sandbox")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    @property
    def host(self) -> Host:
        """What this host can enforce. Raises SandboxBroken."""
        if self._host is None:
            base = self.work_folders.base
            self._host = probe_host(
                self.work_folders.name,
                self.work_folders.images,
                base,
                self.settings,
                root=self.separate_uids,
            )
        return self._host

    def remove_when_dead(self, workspace: Removable) -> None:
        """Remove a quarantined workspace, which takes space, once its processes are dead. A process
        that waits for a slow disk dies later than the agent waits for it."""
        task = asyncio.create_task(self._poll_until_removed(workspace), name="remove when dead")
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _poll_until_removed(self, workspace: Removable) -> None:
        logged = False
        while True:
            try:
                if workspace.is_dead():
                    await workspace.remove()
                    log.info("attempt.removed_late", attempt=workspace.name)
                    return
            except Exception:
                if not logged:
                    logged = True
                    log.exception("attempt.not_removed", attempt=workspace.name)
            await self.clock.sleep(self.settings.death_timeout_s)

    async def close(self) -> None:
        for task in list(self._removals):
            task.cancel()
            await asyncio.wait({task})
        host, self._host = self._host, None
        if host is not None:
            if host.images is not None:
                await self.in_thread(host.images.close)
            if host.hierarchy is not None:
                # a group is busy if its processes would not die
                with contextlib.suppress(OSError):
                    for folder in dict.fromkeys(host.hierarchy.folders.values()):
                        cgroups.remove_group(folder)
                    self.work_folders.record_groups(())
        self.work_folders.close()
        self.log_threads.shutdown(wait=False)
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
