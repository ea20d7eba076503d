"""What ``GET /metrics`` of the agent says."""

from __future__ import annotations

import asyncio
import math
import os
from typing import Final

from prometheus_client.metrics_core import Metric

from client_agent.report.health import READINESS, Health
from client_agent.run.context import AgentContext
from client_agent.storage.folders import Folders
from shared.http.middleware import Gate
from shared.metrics import EventLoopLag, Labels, ProgramMetrics, gauge
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import PayloadState

_FRESH_S: Final = 2.0
"""For so long what was looked at is said again."""


class AgentMetrics(ProgramMetrics):
    """The metrics of an agent."""

    def __init__(
        self,
        context: AgentContext,
        health: Health,
        database: Database,
        gate: Gate,
        lag: EventLoopLag,
    ) -> None:
        sent = gate.requests.transfers
        own = (*context.measures.collectors, *context.payloads.collectors)
        http = (*gate.requests.collectors, sent.count, sent.size)
        counting = [lag.seconds, *http, *database.measured.collectors, *own]
        super().__init__("agent", context.identity.version, counting)
        self._context, self._health = context, health
        self._found: list[Metric] = []
        self._found_until, self._looking = -math.inf, asyncio.Lock()

    async def find(self) -> list[Metric]:
        clock = self._context.clock
        async with self._looking:  # who asks at the same time gets the same
            if clock.monotonic() >= self._found_until:
                self._found = [*await self._of_payloads(), *await self._of_agent()]
                self._found_until = clock.monotonic() + _FRESH_S
        return self._found

    async def _of_payloads(self) -> list[Metric]:
        states: dict[Labels, float] = {(state.value,): 0 for state in PayloadState}
        try:
            counts = await self._context.payloads.counts()
        except DatabaseUnavailable:
            return []
        states |= {(state.value,): count for state, count in counts.items()}
        text = "Payloads that no server has acknowledged."
        return [gauge("ferryman_payloads", text, ("state",), states)]

    async def _of_agent(self) -> list[Metric]:
        reasons = await self._health.unready()
        unready: dict[Labels, float] = {(name,): name in reasons for name in READINESS}
        free, size, waiting = await asyncio.to_thread(_disk, self._context.folders)
        values = (
            ("ferryman_slots", "Jobs that may run at once.", self._context.identity.slots),
            ("ferryman_slots_in_use", "Slots in use.", self._context.slots.in_use),
            (
                "ferryman_quarantined_attempts",
                "Folders of attempts whose processes did not die.",
                waiting,
            ),
            (
                "ferryman_event_listeners",
                "Servers that follow the events of payloads.",
                self._context.payloads.wakeups.listeners,
            ),
            ("ferryman_disk_free_bytes", "Free bytes of the disk of the data folder.", free),
            ("ferryman_disk_size_bytes", "Bytes of that disk.", size),
            (
                "ferryman_disk_min_free_bytes",
                "Free bytes that bundles must leave: min_free.",
                self._context.identity.min_free,
            ),
        )
        text = "1: for this reason no bundles are taken now."
        found: list[Metric] = [gauge("ferryman_unready", text, ("reason",), unready)]
        return found + [gauge(name, text, (), {(): value}) for name, text, value in values]


def _disk(folders: Folders) -> tuple[int, int, int]:
    """Free bytes, all bytes, and how many folders are quarantined. Blocking."""
    disk = os.statvfs(folders.home)
    quarantine = folders.home / "quarantine"
    waiting = len(list(quarantine.iterdir())) if quarantine.is_dir() else 0
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, waiting
