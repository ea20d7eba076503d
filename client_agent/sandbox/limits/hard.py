"""Hard limits: the kernel enforces them, and its counters show that they were reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from client_agent.sandbox.base import Process
from client_agent.sandbox.kernel.cgroups import Cgroup
from client_agent.sandbox.kernel.disk_images import DiskImage
from client_agent.sandbox.limits.meter import EndCause, Gauge
from shared.units.sizes import say_size
from shared.wire import Limits, Reason

MIN_THROTTLED_PERIODS: Final = 10
"""Periods of 0.1 s. If a job was throttled in fewer, there is no warning."""


class CgroupGauge(Gauge):
    """Memory, processes and CPU, from the counters of the job's cgroups."""

    def __init__(self, group: Cgroup, limits: Limits) -> None:
        self._group, self._limits = group, limits
        self._kills = self._refused = self._throttled = 0
        self._at_limit = False

    def _read_counters(self) -> None:
        self._kills = self._group.oom_kills()
        self._at_limit = self._kills > 0 and self._group.at_memory_limit()

    async def poll(self, attempt: Process) -> None:
        self._read_counters()
        end_cause = self.end_cause()
        if end_cause is not None:  # in version 1 the kernel kills only one process
            attempt.stop(end_cause.reason, end_cause.message, grace=False)

    async def read_final(self) -> bool:
        self._read_counters()
        self._refused = self._group.refused_forks()
        self._throttled = self._group.throttled()
        self.cpu_s = self._group.cpu_s()
        self.peak_memory = self._group.peak_memory()
        return True

    def end_cause(self) -> EndCause | None:
        if not self._kills:
            return None
        if not self._at_limit:
            message = "the agent's host ran out of memory, and its kernel killed some of the job"
            return EndCause(Reason.AGENT_ERROR, message)
        message = f"the job needed more than its {say_size(self._limits.memory)} of memory"
        return EndCause(Reason.MEMORY_LIMIT, message)

    def warnings(self) -> Sequence[str]:
        warnings = []
        if self._refused:
            often = "once" if self._refused == 1 else f"{self._refused} times"
            warnings.append(
                f"pids_limit: {often} a process or thread was refused, because the job had its "
                f"{self._limits.pids} already"
            )
        if self._throttled >= MIN_THROTTLED_PERIODS:
            warnings.append(
                f"cpu_limit: {self._throttled} times it had used its {self._limits.cpus:g} CPUs up "
                "before 0.1 s were over, and waited"
            )
        return warnings


class ImageGauge(Gauge):
    """Disk, from the job's own file system."""

    def __init__(self, image: DiskImage, limits: Limits) -> None:
        self._image, self._limits = image, limits
        self._full: str | None = None
        self._was_full = False

    async def poll(self, attempt: Process) -> None:
        del attempt  # the job got ENOSPC, and may handle it
        self._was_full = self._was_full or self._image.full() is not None

    async def read_final(self) -> bool:
        self._full = self._image.full()
        return True

    def end_cause(self) -> EndCause | None:
        if self._full is None:
            return None
        disk = f"disk of {say_size(self._limits.disk)}"
        return EndCause(
            Reason.DISK_LIMIT,
            f"the job's {disk} ran out of room"
            if self._full == "bytes"
            else f"the job made as many files as its {disk} can hold",
        )

    def warnings(self) -> Sequence[str]:
        if self._full is None and self._was_full:
            return (f"disk_limit: the disk of {say_size(self._limits.disk)} was full for a while",)
        return ()


class HostDiskGauge(Gauge):
    """The free space on the agent's disk. Disk images are files there. If they cannot grow any
    more, their jobs get I/O errors. It never is an end cause: the job did not cause
    it, and may have ended normally.

    Args:
        free: bytes free on the agent's disk.
        floor: with fewer free bytes, jobs are ended.
    """

    def __init__(self, free: Callable[[], int], floor: int) -> None:
        self._free, self._floor = free, floor
        self._short: bool | None = None

    async def poll(self, attempt: Process) -> None:
        # in a thread, because it may block for ever on a file server
        self._short = await asyncio.to_thread(self._free) < self._floor
        if self._short:
            message = f"the agent's disk has less than {say_size(self._floor)} left"
            attempt.stop(Reason.AGENT_ERROR, message, grace=False)

    async def read_final(self) -> bool:
        if self._short is None:  # the job was too short for a poll
            self._short = self._free() < self._floor
        return True

    def warnings(self) -> Sequence[str]:
        if not self._short:
            return ()
        return (
            f"agent_disk: at its end the agent's disk had less than {say_size(self._floor)} left",
        )
