"""What the host measures about an attempt while it runs, and what that means for its limits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from client_agent.sandbox.base import Process
from shared.clock import Clock
from shared.wire import Reason

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FINAL_READ_TRIES: Final = 10
"""At the end each gauge is read so often before its limit is called unknown."""


@dataclass(frozen=True, slots=True)
class EndCause:
    """A cause of an end that the kernel's own counters prove."""

    reason: Reason
    message: str


class Gauge(Protocol):
    """Watches one kind of limit."""

    @property
    def cpu_s(self) -> float | None: ...

    @property
    def peak_memory(self) -> int | None: ...

    async def poll(self, attempt: Process) -> None:
        """Look while it runs; call ``attempt.stop`` where a limit is passed."""
        ...

    async def read_final(self) -> bool:
        """It has ended: read for the last time; whether nothing of it is alive, as far as
        known."""
        ...

    def end_cause(self) -> EndCause | None:
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
        all_dead: set when everything is dead, for gauges that look from a thread.
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
        """The gate opens."""
        if self._gauges:
            self._poll_task = asyncio.create_task(self._poll_until_stopped(attempt))

    async def _poll_until_stopped(self, attempt: Process) -> None:
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
        self._all_dead.set()
        if self._poll_task is not None:
            if not self._polling:  # a look under way ends by itself: it may be in a thread
                self._poll_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poll_task
        return all([await self._read_final(gauge) for gauge in self._gauges])

    async def _read_final(self, gauge: Gauge) -> bool:
        trouble = ""
        for _ in range(FINAL_READ_TRIES):
            try:
                return await gauge.read_final()
            except Exception as problem:  # noqa: BLE001 - not worth the attempt's result
                _failed(gauge, problem)
                trouble = str(problem)
                await self._clock.sleep(self._poll_s)
        self._unread.append(f"limits: what it used at its end is not known: {trouble}")
        return True

    def end_cause(self) -> EndCause | None:
        return next((v for gauge in self._gauges if (v := gauge.end_cause()) is not None), None)

    def warnings(self) -> list[str]:
        warnings = [warning for gauge in self._gauges for warning in gauge.warnings()]
        return warnings + self._unread

    def usage(self) -> tuple[float | None, int | None]:
        """CPU seconds and peak memory in bytes; None where nobody counted."""
        cpu = [gauge.cpu_s for gauge in self._gauges if gauge.cpu_s is not None]
        peak = [gauge.peak_memory for gauge in self._gauges if gauge.peak_memory is not None]
        return max(cpu, default=None), max(peak, default=None)


def _failed(gauge: Gauge, problem: Exception) -> None:
    log.warning("gauge.failed", gauge=type(gauge).__name__, problem=repr(problem))
