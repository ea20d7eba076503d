"""The live values of all attempts that run, and which of them are reported when.

A report is in memory only: it wakes the event streams, and each sends the latest values as soon as
it can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from client_agent.output.live import LiveOutput
from client_agent.payloads.payload import Payload
from shared.clock import Clock
from shared.wakeups import Wakeups
from shared.wire import PayloadDoc, PayloadState

FIRST_S: Final = 0.125
"""From a command to its report, if the last report is not too recent."""
REPORT_S: Final = 0.5
"""Between two reports of an attempt, at least."""
OUTPUT_S: Final = 5.0
"""From output without commands to its report, which says only that the attempt is alive."""
_SOON_S: Final = 0.001
"""What is due that soon is due now: a clock's sleep may end a little early."""


class LiveOutputs:
    """The live values of this agent's attempts.

    Args:
        wakeups: of the payloads; notified of each report.

    Attributes:
        reports: number of the latest report.
    """

    def __init__(self, clock: Clock, wakeups: Wakeups) -> None:
        self.reports = 0
        self._clock, self._wakeups = clock, wakeups
        self._outputs: dict[int, LiveOutput] = {}
        self._running: dict[int, Payload] = {}
        self._reported: dict[int, int] = {}
        """Payload -> its latest report; the latest comes last."""
        self._last: dict[int, float] = {}
        """Payload -> when it was reported."""
        self._due: dict[int, float] = {}
        self._timer: asyncio.Task[None] | None = None
        self._timer_due = 0.0

    def get(self, payload_id: int) -> LiveOutput | None:
        """None: it was not launched, or its end is stored."""
        return self._outputs.get(payload_id)

    def doc(self, payload: Payload) -> PayloadDoc:
        """As on the wire, with its live values while it runs."""
        output = self._outputs.get(payload.id)
        if output is None or payload.state is not PayloadState.RUNNING:
            return payload.doc()
        return payload.doc(output.doc_if_any())

    @contextmanager
    def open(self, payload_id: int) -> Iterator[LiveOutput]:
        """The output of an attempt that is launched, until its end is stored."""
        output = LiveOutput(self._clock, lambda command: self._changed(payload_id, command))
        self._outputs[payload_id] = output
        try:
            yield output
        finally:
            del self._outputs[payload_id]
            if not output.ended:
                output.end()

    @contextmanager
    def running(self, payload: Payload) -> Iterator[None]:
        """While run.sh of this Running payload runs: its live values are reported. Once its end
        may be stored, no report says any more that it runs."""
        self._running[payload.id] = payload
        try:
            yield
        finally:
            for kept in (self._running, self._reported, self._last, self._due):
                kept.pop(payload.id, None)

    def reported_after(self, number: int) -> list[int]:
        """Ids of the payloads that were reported after the report of this number."""
        ids = []
        for payload_id, reported in reversed(self._reported.items()):
            if reported <= number:
                break
            ids.append(payload_id)
        return ids

    def report(self, payload_id: int, server: str | None) -> PayloadDoc | None:
        """The document of a payload that runs; None: it ran, or is another server's."""
        payload = self._running.get(payload_id)
        if payload is None or server not in (None, payload.server):
            return None
        return payload.doc(self._outputs[payload_id].doc())

    def close(self) -> None:
        """Report nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _changed(self, payload_id: int, command: bool) -> None:
        if payload_id not in self._running:
            return
        now = self._clock.monotonic()
        due = now + (FIRST_S if command else OUTPUT_S)
        due = max(due, self._last.get(payload_id, due - REPORT_S) + REPORT_S)
        if due < self._due.get(payload_id, due + 1):
            self._due[payload_id] = due
            self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = asyncio.create_task(self._report_at(due), name="live reports")

    async def _report_at(self, due: float) -> None:
        await self._clock.sleep(due - self._clock.monotonic())
        now = self._clock.monotonic()
        ready = [one for one, at in self._due.items() if at <= now + _SOON_S]
        for payload_id in ready:
            self.reports += 1
            del self._due[payload_id]
            self._reported.pop(payload_id, None)
            self._reported[payload_id] = self.reports
            self._last[payload_id] = now
        self._timer = None
        if self._due:
            self._set_timer(min(self._due.values()))
        for payload_id in ready:
            self._wakeups.notify(payload_id, ended=False)
