"""A week of a busy server, as its statistics would be: written without its jobs."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from random import Random  # noqa: TID251 - seeded
from typing import Final

from server.domain.statistics import (
    ALL,
    RESOLUTIONS,
    Key,
    Observed,
    Tree,
    add,
    counts_of,
    sampled,
)
from server.store.migrations import MIGRATIONS
from server.store.statistics import _add
from shared.clock import SECOND, Micros
from shared.sql import Transaction
from shared.sqlite.database import Database
from shared.wire import JobState

_SERVICES: Final = {"docking": 0.6, "folding": 0.3, "example": 0.1}
_REASONS: Final = ("exit_code", "exit_code", "memory_limit", "timeout", "agent_lost")
_OFF_H: Final = (30, 34)
"""Hours ago, between which the server did not run."""


async def write_past_week(path: Path, until: Micros, jobs_an_hour: int = 120) -> None:
    """Write the statistics of the week before ``until`` into a database that no server has open."""
    database = await Database.open(path, MIGRATIONS)
    try:
        for resolution in RESOLUTIONS:
            found: dict[Key, Tree] = {}
            steps = min(resolution.kept_s, 7 * 86_400) // resolution.seconds
            for number in range(steps, -1, -1):
                at = resolution.start(until - number * resolution.seconds * SECOND)
                hours_ago = (until - at) / SECOND / 3_600
                if _OFF_H[0] < hours_ago < _OFF_H[1]:
                    continue
                random = Random(at)
                busy = 0.55 + 0.45 * math.sin(at / SECOND / 86_400 * 2 * math.pi - 2)
                _fill(found, resolution.seconds, at, random, busy, jobs_an_hour)
            await database.write(functools.partial(_write, found))
        await database.write(
            lambda tx: tx.rows("UPDATE statistics_cursor SET sampled_at = :at", {"at": until})
        )
    finally:
        await database.close()


async def _write(found: dict[Key, Tree], tx: Transaction) -> None:
    await _add(tx, found)


def _fill(
    found: dict[Key, Tree], seconds: int, at: Micros, random: Random, busy: float, an_hour: int
) -> None:
    gauges: dict[str, dict[str, int]] = {ALL: {}}
    for service, part in _SERVICES.items():
        queued = round(40 * part * busy**3 * random.uniform(0.6, 1.4))
        running = min(round(14 * part * busy * random.uniform(0.9, 1.6)), 12)
        gauges[service] = {"queued": queued, "under_way": running + 1, "running": running}
        for _ in range(min(400, round(an_hour * seconds / 3_600 * part * busy))):
            for one in _job(service, at, random, busy):
                for name in (ALL, service):
                    add(found.setdefault(Key(seconds, at, name), {}), counts_of(one))
    for name in ("queued", "under_way", "running"):
        gauges[ALL][name] = sum(gauges[service][name] for service in _SERVICES)
    gauges[ALL] |= {
        "agents_up": 2 if random.random() < 0.03 else 3,
        "slots": 24,
        "disk_free_bytes": round(8e11 - 2e4 * (at / SECOND % 604_800)),
        "database_bytes": round(4e7 + 50 * (at / SECOND % 604_800)),
    }
    for key, numbers in sampled(at, gauges).items():
        if key.resolution_s == seconds:
            add(found.setdefault(Key(seconds, at, key.service), {}), numbers)


def _job(service: str, at: Micros, random: Random, busy: float) -> list[Observed]:
    waited = round(random.lognormvariate(0.5 + 3 * busy**2, 0.9) * SECOND)
    ran = round(random.lognormvariate({"example": 0.5}.get(service, 4.2), 0.8) * SECOND)
    how = random.random()
    state = JobState.COMPLETED
    if how < 0.08:
        state = JobState.FAILED
    elif how < 0.1:
        state = JobState.CANCELLED
    reason = random.choice(_REASONS) if state is JobState.FAILED else None
    size = round(random.lognormvariate(12, 1))
    running = JobState.RUNNING
    return [
        Observed(service, at, None, JobState.QUEUED, None, uploaded_bytes=size),
        Observed(service, at, JobState.SUBMITTED, running, None, waits_since=at - waited),
        Observed(service, at, running, state, reason, started_at=at - ran, result_bytes=size * 3),
    ]
