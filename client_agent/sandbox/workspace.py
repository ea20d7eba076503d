"""The directory of one attempt on this host, and its limits."""

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
from client_agent.sandbox.kernel import pidfd
from client_agent.sandbox.kernel.cgroups import Cgroup, kill_group
from client_agent.sandbox.kernel.disk_images import DiskImage
from client_agent.sandbox.limits.hard import CgroupGauge, HostDiskGauge, ImageGauge
from client_agent.sandbox.limits.meter import Gauge, Meter
from client_agent.sandbox.limits.soft import DirectoryGauge, ProcessGauge
from client_agent.sandbox.process.log_capture import LogSettings
from client_agent.sandbox.process.start import Start
from client_agent.sandbox.process.supervisor import SpawnedProcesses, SupervisedProcess
from shared.files.opened import closing_fd
from shared.units.sizes import say_size
from shared.wire import Limits, Reason

log: structlog.stdlib.BoundLogger = structlog.get_logger()

NPROC_MARGIN: Final = 64
"""RLIMIT_NPROC is so much above ``pids.max``, because only the cgroup counts its refusals."""
CPU_MARGIN_S: Final = 10
"""RLIMIT_CPU is so much above the budget, because only the agent reports the reason."""


class HostWorkspace(ABC):
    """Implements :class:`client_agent.sandbox.base.Workspace` except :meth:`start`."""

    path: Path
    max_idle_images: int
    scratch: Sequence[str] = ()
    """Mount points of file systems in memory, as the job sees them."""

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
        self.max_idle_images = resources.settings.spare_images
        self.process: SupervisedProcess | None = None
        self.group: Cgroup | None = None
        self.folder: Path | None = None
        self._resources = resources
        self._image: DiskImage | None = None
        self._destroyed = False
        self.cpu_before_s = 0.0
        """What earlier attempts in it have used."""

    @abstractmethod
    async def start(self, launch: Launch) -> Process: ...

    async def make(self) -> None:
        """Make directory, image and cgroups. Raises SandboxBroken or OSError; then nothing is
        left behind."""
        folders, host = self._resources.work_folders, self._resources.host
        try:
            self.folder = folders.make(self.name)
            if host.images is not None and self.uid is not None:
                image = host.images.take_idle(self.limits.disk)
                if image is None:
                    make = host.images.make
                    image = await self._resources.in_thread(make, self.limits.disk, folders.base)
                self._image = image
                image.make_job_folder(self.uid)
                self.path = image.job
            else:
                self.path = folders.make_job_folder(self.folder, self.uid)
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
        except Exception as problem:  # noqa: BLE001 - it is removed later
            log.warning("attempt.not_removed", attempt=self.name, error=repr(problem))
        if self.folder is not None:  # its image and its cgroup stay, because they are in use
            self.folder = self._resources.work_folders.quarantine(self.folder)
        self._resources.remove_when_dead(self)

    @property
    def seen_as(self) -> str:
        """As the job sees it."""
        return str(self.path)

    @property
    def image(self) -> DiskImage | None:
        """Its own disk; None: its directory is on the agent's."""
        return self._image

    def is_dead(self) -> bool:
        """Whether the processes of a quarantined attempt are dead now."""
        folders = self._resources.work_folders
        init = None if self.folder is None else folders.open_recorded_init(self.folder)
        if init is None:
            return True
        with closing_fd(init):
            poll = select.poll()  # select(2) takes no descriptor beyond 1023
            poll.register(init, select.POLLIN)
            return bool(poll.poll(0))

    async def remove(self) -> None:
        """Remove what was made for an attempt whose processes are dead. After an error, the next
        call removes the rest."""
        folders, images = self._resources.work_folders, self._resources.host.images
        if self.group is not None:
            await self._remove_group(self.group)
            self.group = None

        def remove() -> None:
            if self._image is not None and images is not None:
                images.give_back(self._image, keep_idle=self.max_idle_images)
            self._image = None
            if self.folder is not None:
                folders.remove(self.folder)
            self.folder = None

        await self._resources.in_thread(remove)

    async def _remove_group(self, group: Cgroup) -> None:
        """The last process leaves its cgroup a moment after its descriptors close."""
        for _ in range(400):
            try:
                group.remove()
            except OSError:
                for folder in group.folders:
                    kill_group(folder)  # processes of a start that was given up
                await self._resources.clock.sleep(0.005)
            else:
                return
        log.warning("cgroup.not_removed", attempt=self.name)

    def new_start(self, rlimits: Mapping[str, int] | None, *, without_bwrap: bool = False) -> Start:
        """A start of the job's chain of programs."""
        clock, settings = self._resources.clock, self._resources.settings
        pidfd.become_subreaper()
        return Start(self._record_init, clock, settings, rlimits, without_bwrap=without_bwrap)

    async def hand_over(self, start: Start, launch: Launch) -> SpawnedProcesses:
        """What waits at its gate. Raises OSError if a log cannot be stored; then it is ended."""
        try:
            return start.hand_over(launch, self.logs(launch))
        except BaseException:
            await start.abandon()
            raise

    def supervise(
        self, spawned: SpawnedProcesses, launch: Launch, *gauges: Gauge
    ) -> SupervisedProcess:
        """Supervise the processes of a start, with these gauges besides those of every attempt."""
        clock, death_timeout_s = self._resources.clock, self._resources.settings.death_timeout_s
        meter = self.meter(launch, *gauges)
        self.process = SupervisedProcess(spawned, launch, meter, clock, death_timeout_s)
        return self.process

    def _record_init(self, init: int) -> None:
        """Note the init, so that the next run of the agent can kill it."""
        if self.folder is not None:
            self._resources.work_folders.record_init(self.folder, init)

    def rlimits(self, timeout_s: float) -> dict[str, int]:
        """Of each process inside, see :func:`client_agent.sandbox.process.chain.set_limits`."""
        limits, hard = self.limits, {k for k, how in self.enforcement.items() if how == HARD}
        rlimits = {
            "nproc": limits.pids + (NPROC_MARGIN if "pids" in hard else 0),
            "nofile": self._resources.settings.nofile,
            "core": 0,
        }
        if "memory" not in hard:
            rlimits["as"] = limits.memory
        if "disk" not in hard:
            rlimits["fsize"] = limits.disk
        if "cpu" not in hard and timeout_s:
            rlimits["cpu"] = math.ceil(self._cpu_budget_s(timeout_s)) + CPU_MARGIN_S
        return rlimits

    def logs(self, launch: Launch) -> LogSettings:
        """How much of the output is stored, and at which size the job is ended."""
        factor = self._resources.settings.log_hard_factor
        hard_limit = self.limits.log * factor

        def on_flood(stream: str) -> None:
            if self.process is not None:
                message = (
                    f"the job wrote more than {say_size(hard_limit)} to {stream}, {factor} times "
                    f"its log limit of {say_size(self.limits.log)}"
                )
                self.process.stop(Reason.LOG_LIMIT, message, grace=False)

        threads = self._resources.log_threads
        return LogSettings(self.limits.log, hard_limit, on_flood, threads, launch.listener)

    def meter(self, launch: Launch, *more: Gauge) -> Meter:
        """The gauges of the attempt."""
        resources, settings, limits = self._resources, self._resources.settings, self.limits
        all_dead = threading.Event()
        free = resources.work_folders.free
        gauges: list[Gauge] = [HostDiskGauge(free, settings.free_floor)]
        if self.group is not None:
            gauges.append(CgroupGauge(self.group, limits))
        memory, cpu = (self.enforcement[name] != HARD for name in ("memory", "cpu"))
        if memory or cpu:
            budget_s = self._cpu_budget_s(launch.timeout_s)
            clock, scratch = resources.clock, self.scratch
            gauges.append(
                ProcessGauge(
                    limits,
                    budget_s,
                    clock,
                    memory=memory,
                    cpu=cpu,
                    scratch=scratch,
                    cpu_before_s=self.cpu_before_s,
                )
            )
        if self._image is not None:
            gauges.append(ImageGauge(self._image, limits))
        else:
            max_files = max(256, limits.disk // settings.inode_every)
            gauges.append(DirectoryGauge(self.fd, limits, max_files, resources.clock, all_dead))
        return Meter([*more, *gauges], resources.clock, settings.poll_s, all_dead)

    def _cpu_budget_s(self, timeout_s: float) -> float:
        return timeout_s * self.limits.cpus if timeout_s else math.inf
