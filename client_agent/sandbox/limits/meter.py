"""Measures what an attempt uses while it runs, and compares it with its limits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from client_agent.sandbox.base import Process
from shared.clock import Clock
from shared.wire import Reason

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FINAL_READ_TRIES: Final = 10
"""At the end, each gauge is read at most so often. Then its reading is unknown."""


@dataclass(frozen=True, slots=True)
class EndCause:
    """Why an attempt ended, according to the kernel's counters."""

    reason: Reason
    message: str


class Gauge:
    """Measures one kind of limit. By itself it measures and reports nothing."""

    cpu_s: float | None = None
    peak_memory: int | None = None

    async def poll(self, attempt: Process) -> None:
        """Measure while it runs. Calls ``attempt.stop`` if a limit is exceeded."""

    async def read_final(self) -> bool:
        """Read for the last time, after the end; whether all of its processes are dead, as far as
        known."""
        return True

    def end_cause(self) -> EndCause | None:
        """The limit that ended it, if one did."""
        return None

    def warnings(self) -> Sequence[str]:
        """Limits that were reached, but did not end it."""
        return ()


class Meter:
    """The gauges of one attempt. If a gauge cannot be read, for example because there is no free
    descriptor, it is read again. What stays unknown is a warning; the attempt keeps its result.

    Args:
        poll_s: time between two polls. The kernel enforces its hard limits all the time.
        all_dead: set when all processes are dead, for gauges that work in a thread.
    """

    def __init__(
        self, gauges: Sequence[Gauge], clock: Clock, poll_s: float, all_dead: threading.Event
    ) -> None:
        self._gauges, self._clock, self._poll_s, self._all_dead = gauges, clock, poll_s, all_dead
        self._poll_task: asyncio.Task[None] | None = None
        self._polling = False
        self._stopping = False
        self._unread: list[str] = []

    def start(self, attempt: Process) -> None:
        """Start polling, when the gate opens."""
        if self._gauges:
            self._poll_task = asyncio.create_task(self._poll_until_stopped(attempt))

    async def _poll_until_stopped(self, attempt: Process) -> None:
        while not self._stopping:
            await self._clock.sleep(self._poll_s)
            self._polling = True
            for gauge in self._gauges:
                try:
                    await gauge.poll(attempt)
                except Exception as problem:  # noqa: BLE001 - the next poll may succeed
                    _failed(gauge, problem)
            self._polling = False

    async def stop(self) -> bool:
        """Take the final readings, after its end. Returns whether all of its processes are dead,
        as far as the gauges know."""
        self._stopping = True
        self._all_dead.set()
        if self._poll_task is not None:
            if not self._polling:  # a running poll ends by itself, because it may be in a thread
                self._poll_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poll_task
        return all([await self._read_final(gauge) for gauge in self._gauges])

    async def _read_final(self, gauge: Gauge) -> bool:
        error = ""
        for _ in range(FINAL_READ_TRIES):
            try:
                return await gauge.read_final()
            except Exception as problem:  # noqa: BLE001 - the attempt keeps its result
                _failed(gauge, problem)
                error = str(problem)
                await self._clock.sleep(self._poll_s)
        self._unread.append(f"limits: what it used at its end is not known: {error}")
        return True

    def end_cause(self) -> EndCause | None:
        return next((cause for gauge in self._gauges if (cause := gauge.end_cause())), None)

    def warnings(self) -> list[str]:
        warnings = [warning for gauge in self._gauges for warning in gauge.warnings()]
        return warnings + self._unread

    def usage(self) -> tuple[float | None, int | None]:
        """CPU seconds and peak memory in bytes; None: not measured."""
        cpu = [gauge.cpu_s for gauge in self._gauges if gauge.cpu_s is not None]
        peak = [gauge.peak_memory for gauge in self._gauges if gauge.peak_memory is not None]
        return max(cpu, default=None), max(peak, default=None)


def _failed(gauge: Gauge, problem: Exception) -> None:
    log.warning("gauge.failed", gauge=type(gauge).__name__, error=repr(problem))
