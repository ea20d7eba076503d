"""A week of a busy server, as its statistics would be: written without its jobs."""

import math
from pathlib import Path
from random import Random  # noqa: TID251 - seeded
from typing import Final

from server.domain.statistics import ALL, BUCKET_S, Tree, add, begin_of
from server.store import statistics
from server.store.migrations import MIGRATIONS
from shared.clock import SECOND, Micros
from shared.sqlite.database import Database

_SERVICES: Final = {"docking": 0.6, "folding": 0.3, "example": 0.1}
_REASONS: Final = ("exit_code", "exit_code", "memory_limit", "timeout", "agent_lost")
_JOBS_AN_HOUR: Final = 120
_OFF_H: Final = (30, 34)
"""Hours ago, between which the server did not run."""


async def write_past_week(path: Path, until: Micros) -> None:
    """Write the statistics of the week before ``until`` into a database that no server has open."""
    found: dict[tuple[Micros, str], Tree] = {}
    for number in range(7 * 86_400 // BUCKET_S, -1, -1):
        at = begin_of(until - number * BUCKET_S * SECOND)
        if _OFF_H[0] < (until - at) / SECOND / 3_600 < _OFF_H[1]:
            continue
        random = Random(at)
        busy = 0.55 + 0.45 * math.sin(at / SECOND / 86_400 * 2 * math.pi - 2)
        found[at, ALL] = {"samples": 1}
        for service, part in _SERVICES.items():
            jobs = round(_JOBS_AN_HOUR * BUCKET_S / 3_600 * part * busy)
            found[at, service] = numbers = _numbers(service, random, part, busy, jobs)
            add(found[at, ALL], numbers)
    database = await Database.open(path, MIGRATIONS)
    try:
        await database.write(statistics.add_counted, found, 0)
    finally:
        await database.close()


def _numbers(service: str, random: Random, part: float, busy: float, jobs: int) -> Tree:
    numbers: Tree = {
        "queued": round(40 * part * busy**3 * random.uniform(0.6, 1.4)),
        "running": min(round(14 * part * busy * random.uniform(0.9, 1.6)), 12),
    }
    for _ in range(jobs):
        waited = round(random.lognormvariate(0.5 + 3 * busy**2, 0.9) * SECOND)
        ran = round(random.lognormvariate({"example": 0.5}.get(service, 4.2), 0.8) * SECOND)
        size, how = round(random.lognormvariate(12, 1)), random.random()
        add(numbers, {"uploaded": 1, "uploaded_bytes": size, "result_bytes": size * 3})
        add(numbers, {"started": 1, "waited_us": waited, "longest_wait_us": waited})
        add(numbers, {"runs": 1, "ran_us": ran})
        ends: Tree = {"cancelled": 1} if how < 0.1 else {"completed": 1}
        add(numbers, {"failed": {random.choice(_REASONS): 1}} if how < 0.08 else ends)
    return numbers
