"""Soft limits: the agent samples what an attempt uses, if the kernel does not count it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from client_agent.sandbox.base import Process
from client_agent.sandbox.limits import usage
from client_agent.sandbox.limits.meter import EndCause, Gauge
from shared.clock import Clock
from shared.units.sizes import say_size
from shared.wire import Limits, Reason

P = ParamSpec("P")
T = TypeVar("T")


class SampleThrottle:
    """Runs samples in a thread, and limits how often. A job can make a sample slow by having
    thousands of files, descriptors or mappings.

    Args:
        pause_factor: after a sample, there is a pause of so many times its duration.
    """

    def __init__(self, clock: Clock, pause_factor: float) -> None:
        self._clock, self._pause_factor = clock, pause_factor
        self._not_before = 0.0

    @property
    def due(self) -> bool:
        return self._clock.monotonic() >= self._not_before

    async def sample(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        started = self._clock.monotonic()
        result = await asyncio.to_thread(work, *args, **kwargs)
        ended = self._clock.monotonic()
        self._not_before = ended + self._pause_factor * (ended - started)
        return result


class ProcessGauge(Gauge):
    """Memory and CPU, summed from ``/proc``. A job can exceed them between two samples.

    Args:
        memory, cpu: whether to measure them; False if a cgroup limits them.
        budget_s: CPU time that all processes together may use.
        scratch: mount points of file systems in memory, which count as memory.
        cpu_before_s: what the sandbox had used before this attempt.
    """

    def __init__(
        self,
        limits: Limits,
        budget_s: float,
        clock: Clock,
        *,
        memory: bool,
        cpu: bool,
        scratch: Sequence[str] = (),
        cpu_before_s: float = 0.0,
    ) -> None:
        self._scratch, self._cpu_before_s = scratch, cpu_before_s
        self._limits, self._budget_s = limits, budget_s
        self._memory, self._cpu = memory, cpu
        self._throttle = SampleThrottle(clock, 2.0)

    def _sample(self, init: int) -> tuple[usage.ProcessUsage, bool]:
        """What is used, and whether it is too much memory."""
        used = usage.process_usage(init)
        if not self._memory:
            return used, False
        files = usage.tmpfs_memory(init, self._scratch)
        files += usage.deleted_file_bytes(init, usage.memfd_device())
        limit = self._limits.memory
        if used.memory + files <= limit:
            return used, False
        # Twice, because shared memory is counted several times while processes end.
        return used, all(usage.exact_memory(init, files) > limit for _ in range(2))

    async def poll(self, attempt: Process) -> None:
        if not self._throttle.due:
            return
        used, too_much = await self._throttle.sample(self._sample, attempt.pid)
        if self._memory:
            self.peak_memory = max(self.peak_memory or 0, min(used.memory, self._limits.memory))
            if too_much:
                attempt.stop(
                    Reason.MEMORY_LIMIT,
                    f"the job needed more than its {say_size(self._limits.memory)} of memory",
                    grace=False,
                )
        if self._cpu and used.cpu_s - self._cpu_before_s > self._budget_s:
            attempt.stop(
                Reason.CPU_LIMIT,
                f"the job used more than {self._budget_s:g} s of CPU, which is all that "
                f"{self._limits.cpus:g} CPUs have in its time",
            )


class DirectoryGauge(Gauge):
    """Disk, measured by walking the job's directory.

    Args:
        fd: descriptor of the directory; stays open until :meth:`Meter.stop` has returned.
        all_dead: see :class:`Meter`.
    """

    def __init__(
        self, fd: int, limits: Limits, max_files: int, clock: Clock, all_dead: threading.Event
    ) -> None:
        self._fd, self._device = fd, os.fstat(fd).st_dev
        self._limits, self._max_files, self._all_dead = limits, max_files, all_dead
        self._throttle = SampleThrottle(clock, 10.0)
        self._final_cause: EndCause | None = None

    async def poll(self, attempt: Process) -> None:
        if not self._throttle.due:
            return
        cause = await self._throttle.sample(self._sample, attempt.pid)
        if cause is not None:
            attempt.stop(cause.reason, cause.message, grace=False)

    def _sample(self, init: int) -> EndCause | None:
        stored = usage.directory_usage(self._fd, self._max_files, self._all_dead.is_set)
        return self._exceeded(stored, usage.deleted_file_bytes(init, self._device))

    async def read_final(self) -> bool:
        stored = await asyncio.to_thread(usage.directory_usage, self._fd, self._max_files)
        self._final_cause = self._exceeded(stored, 0)
        return True

    def _exceeded(self, stored: usage.DirectoryUsage, deleted: int) -> EndCause | None:
        total = stored.bytes + deleted
        if total > self._limits.disk:
            message = (
                f"the job stored {say_size(total)}; its disk limit is {say_size(self._limits.disk)}"
            )
        elif stored.entries > self._max_files:
            message = f"the job made more than {self._max_files} files and folders"
        elif stored.too_deep:
            message = f"the job nested folders more than {usage.MAX_DEPTH} deep"
        else:
            return None
        return EndCause(Reason.DISK_LIMIT, message)

    def end_cause(self) -> EndCause | None:
        return self._final_cause
