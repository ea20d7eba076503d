"""What the server does all the time: each loop, and how often it looks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from server.domain.leases import RENEW_EVERY_S
from server.loops.runner import Loop, Sweep, TimedSweep
from server.loops.wakeups import JobWakeups
from server.settings.tables import ServerTable
from shared.clock import Clock

UPLOADS_CHECKED_S: Final = 5.0
"""Between two looks for uploads that are too slow."""
DECIDED_EVERY_S: Final = 10.0
"""Between two looks at what was decided about agents and services elsewhere."""
AUDIT_EVERY_S: Final = 0.4
"""Between two writes of the audit trail."""
TOKENS_EVERY_S: Final = 2.0
"""Between two looks at what was decided about tokens elsewhere."""
PROGRESS_EVERY_S: Final = 0.4
"""Between two writes of what running jobs say. An agent reports it twice a second, and it is to be
seen within one."""
DEPENDENCIES_EVERY_S: Final = 10.0
"""Between two looks for dependencies on jobs that no move has ended."""
SCHEDULES_EVERY_S: Final = 60.0
"""Between two looks at the schedules, where none is due."""
STATISTICS_EVERY_S: Final = 60.0
"""Between two samples for charts, at the latest."""
CANCEL_AGAIN_S: Final = 5.0
"""Until a cancel is tried again whose agent could not be reached."""

WEBHOOKS_EVERY_S: Final = 60.0
"""Between two looks for webhooks, where none is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """What the loops do, by their names."""

    leases: Sweep
    sender: TimedSweep
    progress: Sweep
    getter: Sweep
    canceller: Sweep
    agents: Sweep
    services: Sweep
    audit: Sweep
    tokens: Sweep
    uploads: Sweep
    dependencies: Sweep
    webhooks: TimedSweep
    batches: Sweep
    cleaner: Sweep
    statistics: TimedSweep
    schedules: TimedSweep


def loops(table: ServerTable, wakeups: JobWakeups, clock: Clock, sweeps: Sweeps) -> list[Loop]:
    """All loops, not started."""

    def loop(name: str, every_s: float, wakeup: asyncio.Event | None = None) -> Loop:
        return Loop(name, getattr(sweeps, name), every_s, wakeup or asyncio.Event(), clock)

    def timed(name: str, every_s: float, wakeup: asyncio.Event | None = None) -> Loop:
        sweep: TimedSweep = getattr(sweeps, name)
        wakeup = wakeup or asyncio.Event()
        return Loop(name, sweep, every_s, wakeup, clock, sweep.until_next_s)

    return [
        loop("leases", RENEW_EVERY_S, wakeups.leases),
        timed("sender", table.sender_interval, wakeups.sender),
        loop("progress", PROGRESS_EVERY_S),
        loop("getter", table.getter_interval, wakeups.getter),
        loop("canceller", CANCEL_AGAIN_S, wakeups.canceller),
        loop("agents", DECIDED_EVERY_S),
        loop("services", DECIDED_EVERY_S),
        loop("audit", AUDIT_EVERY_S),
        loop("tokens", TOKENS_EVERY_S),
        loop("uploads", UPLOADS_CHECKED_S),
        loop("dependencies", DEPENDENCIES_EVERY_S, wakeups.dependencies),
        timed("webhooks", WEBHOOKS_EVERY_S, wakeups.webhooks),
        loop("batches", table.sender_interval, wakeups.batches),
        loop("cleaner", table.cleaner_interval, wakeups.cleaner),
        timed("statistics", STATISTICS_EVERY_S),
        timed("schedules", SCHEDULES_EVERY_S, wakeups.schedules),
    ]
