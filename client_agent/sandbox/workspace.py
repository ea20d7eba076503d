"""The directory of one attempt on this host, with the limits that hold for it."""

from __future__ import annotations

import math
import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from client_agent.sandbox.base import HARD, NONE, Launch, Process
from client_agent.sandbox.host_resources import HostResources
from client_agent.sandbox.kernel.cgroups import Cgroup, kill_group
from client_agent.sandbox.kernel.disk_images import DiskImage
from client_agent.sandbox.limits.hard import CgroupGauge, HostDiskGauge, ImageGauge
from client_agent.sandbox.limits.meter import Gauge, Meter
from client_agent.sandbox.limits.soft import DirectoryGauge, ProcessGauge
from client_agent.sandbox.process.start import LogSettings
from client_agent.sandbox.process.supervisor import SupervisedProcess
from shared.units.sizes import say_size
from shared.wire import Limits, Reason

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_IDLE_IMAGES: Final = 4
"""Idle images kept for the next attempts; each holds a loop device and some cache."""
NPROC_MARGIN: Final = 64
"""RLIMIT_NPROC above ``pids.max``: the cgroup, whose refusals are counted, is to be met first."""
CPU_MARGIN_S: Final = 10
"""RLIMIT_CPU above the budget: the agent, which can say why, is to be first."""


class HostWorkspace(ABC):
    """Implements :class:`client_agent.sandbox.base.Workspace` but for :meth:`start`."""

    path: Path
    max_idle_images = MAX_IDLE_IMAGES
    scratch: Sequence[str] = ()
    """Where file systems in memory are mounted, as the job sees them."""

    def __init__(
        self, resources: HostResources, name: str, uid: int | None, limits: Limits
    ) -> None:
        self.uid = self.gid = uid
        self.fd = -1
        self.enforcement: Mapping[str, str] = {
            **resources.host.enforcement,
            **({"network": NONE} if limits.network else {}),
        }
        self.limits, self.name = limits, name
        self.process: SupervisedProcess | None = None
        self.group: Cgroup | None = None
        self.folder: Path | None = None
        self._resources = resources
        self._image: DiskImage | None = None
        self._destroyed = False

    @abstractmethod
    async def start(self, launch: Launch) -> Process: ...

    async def make(self) -> None:
        """Make directory, image and cgroups.

        Raises:
            SandboxBroken, OSError: nothing is left.
        """
        places, host = self._resources.work_folders, self._resources.host
        try:
            self.folder = places.make(self.name)
            if host.images is not None and self.uid is not None:
                image = host.images.take_idle(self.limits.disk)
                if image is None:
                    make = host.images.make
                    image = await self._resources.in_thread(make, self.limits.disk, places.base)
                self._image = image
                image.make_job_folder(self.uid)
                self.path = image.job
            else:
                self.path = places.make_job(self.folder, self.uid)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self.fd = os.open(self.path, flags)
            if host.hierarchy is not None:
                self.group = Cgroup(host.hierarchy, self.name, self.limits)
        except BaseException:
            await self.destroy()
            raise

    async def destroy(self) -> None:
        if self._destroyed:
            return
        self._destroyed = True
        if self.fd >= 0:
            os.close(self.fd)
        try:
            if self.process is None or (await self.process.wait()).certain:
                await self.remove()
                return
        except Exception as problem:  # noqa: BLE001 - what is left is removed later
            log.warning("attempt.not_removed", attempt=self.name, problem=repr(problem))
        if self.folder is not None:  # its image and its cgroup stay, too: they are in use
            self.folder = self._resources.work_folders.quarantine(self.folder)
        self._resources.remove_when_dead(self)

    def is_dead(self) -> bool:
        """Of a quarantined attempt: whether its processes have died since."""
        init = (
            None if self.folder is None else self._resources.work_folders.recorded_init(self.folder)
        )
        if init is None:
            return True
        try:
            poll = select.poll()  # select(2) takes no descriptor beyond 1023
            poll.register(init, select.POLLIN)
            return bool(poll.poll(0))
        finally:
            os.close(init)

    async def remove(self) -> None:
        """Remove what was made for an attempt of which nothing is alive. After an error the next
        call goes on with what is left."""
        places, images = self._resources.work_folders, self._resources.host.images
        if self.group is not None:
            await self._remove_group(self.group)
            self.group = None

        def remove() -> None:
            if self._image is not None and images is not None:
                images.give_back(self._image, keep_idle=self.max_idle_images)
            self._image = None
            if self.folder is not None:
                places.remove(self.folder)
            self.folder = None

        await self._resources.in_thread(remove)

    async def _remove_group(self, group: Cgroup) -> None:
        """The last process leaves its cgroup a moment after its descriptors close."""
        for _ in range(400):
            try:
                group.remove()
            except OSError:
                for folder in group.folders:
                    kill_group(folder)  # of a start that was given up
                await self._resources.clock.sleep(0.005)
            else:
                return
        log.warning("cgroup.not_removed", attempt=self.name)

    def record_init(self, init: int) -> None:
        """Note who must die should the agent be killed."""
        if self.folder is not None:
            self._resources.work_folders.record_init(self.folder, init)

    def rlimits(self, launch: Launch) -> dict[str, int]:
        """For :func:`client_agent.sandbox.process.chain.gated`."""
        limits, hard = self.limits, {k for k, how in self.enforcement.items() if how == HARD}
        found = {
            "nproc": limits.pids + (NPROC_MARGIN if "pids" in hard else 0),
            "nofile": self._resources.settings.nofile,
            "core": 0,
        }
        if "memory" not in hard:
            found["as"] = limits.memory
        if "disk" not in hard:
            found["fsize"] = limits.disk
        if "cpu" not in hard:
            found["cpu"] = math.ceil(self._cpu_budget_s(launch)) + CPU_MARGIN_S
        return found

    def logs(self) -> LogSettings:
        """How much of the output is kept, and what happens to a flood."""
        factor = self._resources.settings.log_hard_factor
        most = self.limits.log * factor

        def on_flood(stream: str) -> None:
            if self.process is not None:
                message = (
                    f"the job wrote more than {say_size(most)} to {stream}, {factor} times its log "
                    f"limit of {say_size(self.limits.log)}"
                )
                self.process.stop(Reason.LOG_LIMIT, message, grace=False)

        return LogSettings(self.limits.log, most, on_flood, self._resources.log_threads)

    def meter(self, launch: Launch, *more: Gauge) -> Meter:
        """Everything that watches the attempt."""
        resources, settings, limits = self._resources, self._resources.settings, self.limits
        all_dead = threading.Event()
        gauges: list[Gauge] = [HostDiskGauge(resources.work_folders.free, settings.free_floor)]
        if self.group is not None:
            gauges.append(CgroupGauge(self.group, limits))
        memory, cpu = (self.enforcement[name] != HARD for name in ("memory", "cpu"))
        if memory or cpu:
            budget_s = self._cpu_budget_s(launch)
            gauges.append(
                ProcessGauge(
                    limits,
                    budget_s,
                    resources.clock,
                    memory=memory,
                    cpu=cpu,
                    scratch=self.scratch,
                )
            )
        if self._image is not None:
            gauges.append(ImageGauge(self._image, limits))
        else:
            gauges.append(
                DirectoryGauge(
                    self.fd,
                    os.fstat(self.fd).st_dev,
                    limits,
                    max(256, limits.disk // settings.inode_every),
                    resources.clock,
                    all_dead,
                )
            )
        return Meter([*more, *gauges], resources.clock, settings.poll_s, all_dead)

    def _cpu_budget_s(self, launch: Launch) -> float:
        return launch.timeout_s * self.limits.cpus
