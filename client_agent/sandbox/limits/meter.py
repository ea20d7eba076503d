"""What the host measures about an attempt while it runs, and what that means for its limits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from client_agent.sandbox.kernel.cgroups import Group
from client_agent.sandbox.kernel.disk_images import Image
from shared.clock import Clock
from shared.units.sizes import say_size
from shared.wire import Limits, Reason

if TYPE_CHECKING:
    from client_agent.sandbox.process.supervisor import Attempt


log: structlog.stdlib.BoundLogger = structlog.get_logger()

OFTEN_THROTTLED: Final = 10
"""Periods of 0.1 s; a shorter wait for CPU is not worth a word."""
LAST_TRIES: Final = 10
"""At the end each gauge is read so often before its limit is called unknown."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause of an end that the kernel's own counters prove."""

    reason: Reason
    message: str


class Gauge(Protocol):
    """Watches one kind of limit."""

    @property
    def cpu_s(self) -> float | None: ...

    @property
    def peak_memory(self) -> int | None: ...

    async def poll(self, attempt: Attempt) -> None:
        """Look while it runs; call ``attempt.stop`` where a limit is passed."""
        ...

    async def last(self) -> bool:
        """It has ended: read for the last time; whether nothing of it is alive, as far as
        known."""
        ...

    def verdict(self) -> Verdict | None:
        """The limit that was the end of it."""
        ...

    def warnings(self) -> Sequence[str]:
        """Limits that were met without ending it."""
        ...


class Meter:
    """The gauges of one attempt. A gauge that cannot be read, perhaps for want of descriptors,
    costs no attempt its result: it is read again, and what stays unknown is a warning.

    Args:
        poll_s: between two looks; the kernel's hard limits do not wait for one.
        hurry: set when everything is dead, for gauges that look from a thread.
    """

    def __init__(
        self, gauges: Sequence[Gauge], clock: Clock, poll_s: float, hurry: threading.Event
    ) -> None:
        self._gauges, self._clock, self._poll_s, self._hurry = gauges, clock, poll_s, hurry
        self._watching: asyncio.Task[None] | None = None
        self._polling = False
        self._stopping = False
        self._unknown: list[str] = []

    def start(self, attempt: Attempt) -> None:
        """The gate opens."""
        if self._gauges:
            self._watching = asyncio.create_task(self._watch(attempt))

    async def _watch(self, attempt: Attempt) -> None:
        while not self._stopping:
            await self._clock.sleep(self._poll_s)
            self._polling = True
            for gauge in self._gauges:
                try:
                    await gauge.poll(attempt)
                except Exception as problem:  # noqa: BLE001 - the next look may succeed
                    _failed(gauge, problem)
            self._polling = False

    async def stop(self) -> bool:
        """It has ended: take the last readings.

        Returns:
            Whether nothing of it is alive, as far as the gauges know.
        """
        self._stopping = True
        self._hurry.set()
        if self._watching is not None:
            if not self._polling:  # a look under way ends by itself: it may be in a thread
                self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        return all([await self._last(gauge) for gauge in self._gauges])

    async def _last(self, gauge: Gauge) -> bool:
        trouble = ""
        for _ in range(LAST_TRIES):
            try:
                return await gauge.last()
            except Exception as problem:  # noqa: BLE001 - not worth the attempt's result
                _failed(gauge, problem)
                trouble = str(problem)
                await self._clock.sleep(self._poll_s)
        self._unknown.append(f"limits: what it used at its end is not known: {trouble}")
        return True

    def verdict(self) -> Verdict | None:
        return next((v for gauge in self._gauges if (v := gauge.verdict()) is not None), None)

    def warnings(self) -> list[str]:
        told = [warning for gauge in self._gauges for warning in gauge.warnings()]
        return told + self._unknown

    def usage(self) -> tuple[float | None, int | None]:
        """CPU seconds and peak memory in bytes; None where nobody counted."""
        cpu = [gauge.cpu_s for gauge in self._gauges if gauge.cpu_s is not None]
        peak = [gauge.peak_memory for gauge in self._gauges if gauge.peak_memory is not None]
        return max(cpu, default=None), max(peak, default=None)


def _failed(gauge: Gauge, problem: Exception) -> None:
    log.warning("gauge.failed", gauge=type(gauge).__name__, problem=repr(problem))


class CgroupGauge:
    """Memory, processes and CPU by the kernel's counters: hard."""

    def __init__(self, group: Group, limits: Limits) -> None:
        self._group, self._limits = group, limits
        self.cpu_s: float | None = None
        self.peak_memory: int | None = None
        self._kills = self._refused = self._throttled = 0
        self._at_limit = False

    def _look(self) -> None:
        self._kills = self._group.oom_kills()
        self._at_limit = self._kills > 0 and self._group.at_memory_limit()

    async def poll(self, attempt: Attempt) -> None:
        self._look()
        verdict = self.verdict()
        if verdict is not None:  # in version 1 the kernel takes one process and leaves the rest
            attempt.stop(verdict.reason, verdict.message, grace=False)

    async def last(self) -> bool:
        self._look()
        self._refused = self._group.refused_forks()
        self._throttled = self._group.throttled()
        self.cpu_s = self._group.cpu_s()
        self.peak_memory = self._group.peak_memory()
        return True

    def verdict(self) -> Verdict | None:
        if not self._kills:
            return None
        if not self._at_limit:
            message = "the agent's host ran out of memory, and its kernel killed some of the job"
            return Verdict(Reason.AGENT_ERROR, message)
        message = f"the job needed more than its {say_size(self._limits.memory)} of memory"
        return Verdict(Reason.MEMORY_LIMIT, message)

    def warnings(self) -> Sequence[str]:
        told = []
        if self._refused:
            often = "once" if self._refused == 1 else f"{self._refused} times"
            told.append(
                f"pids_limit: {often} a process or thread was refused, because the job had its "
                f"{self._limits.pids} already"
            )
        if self._throttled >= OFTEN_THROTTLED:
            told.append(
                f"cpu_limit: {self._throttled} times it had used its {self._limits.cpus:g} CPUs up "
                "before 0.1 s were over, and waited"
            )
        return told


class ImageGauge:
    """Disk by a file system of its own: hard."""

    cpu_s = peak_memory = None

    def __init__(self, image: Image, limits: Limits) -> None:
        self._image, self._limits = image, limits
        self._full: str | None = None
        self._was_full = False

    async def poll(self, attempt: Attempt) -> None:
        del attempt  # the job has seen ENOSPC; what it makes of that is its own affair
        self._was_full = self._was_full or self._image.full() is not None

    async def last(self) -> bool:
        self._full = self._image.full()
        return True

    def verdict(self) -> Verdict | None:
        if self._full is None:
            return None
        disk = f"disk of {say_size(self._limits.disk)}"
        return Verdict(
            Reason.DISK_LIMIT,
            f"the job's {disk} ran out of room"
            if self._full == "bytes"
            else f"the job made as many files as its {disk} can hold",
        )

    def warnings(self) -> Sequence[str]:
        if self._full is None and self._was_full:
            return (f"disk_limit: the disk of {say_size(self._limits.disk)} was full for a while",)
        return ()


class HostDiskGauge:
    """The free space that jobs leave to the host. An image is a file there: it fills that disk,
    too, and a job whose image cannot grow any more sees nothing but I/O errors.

    Args:
        free: bytes free on the host's disk.
        floor: below this nothing of ours may go on.
    """

    cpu_s = peak_memory = None

    def __init__(self, free: Callable[[], int], floor: int) -> None:
        self._free, self._floor = free, floor
        self._short: bool | None = None

    async def poll(self, attempt: Attempt) -> None:
        # in a thread: on a file server that is gone it takes for ever
        self._short = await asyncio.to_thread(self._free) < self._floor
        if self._short:
            message = f"the agent's disk has less than {say_size(self._floor)} left"
            attempt.stop(Reason.AGENT_ERROR, message, grace=False)

    async def last(self) -> bool:
        if self._short is None:  # too short a job to have been looked at
            self._short = self._free() < self._floor
        return True

    def verdict(self) -> Verdict | None:
        return None  # not the job's fault, and perhaps it did not even notice

    def warnings(self) -> Sequence[str]:
        if not self._short:
            return ()
        return (
            f"agent_disk: at its end the agent's disk had less than {say_size(self._floor)} left",
        )
