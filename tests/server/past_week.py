"""A week of a busy server, as its statistics would be: written without its jobs."""

import math
from pathlib import Path
from typing import Final

from server.domain.statistics import ALL, BUCKET_S, Tree, add, begin_of
from server.store import statistics
from server.store.migrations import MIGRATIONS
from shared.clock import SECOND, Micros
from shared.sqlite.database import Database

_SERVICES: Final = {"docking": 70, "folding": 35, "example": 12}
"""How many jobs an hour each has."""
_OFF_H: Final = (30, 34)
"""Hours ago, between which the server did not run."""


async def write_past_week(path: Path, until: Micros) -> None:
    """Write the statistics of the week before ``until`` into a database that no server has open."""
    found: dict[tuple[Micros, str], Tree] = {}
    for number in range(7 * 86_400 // BUCKET_S, -1, -1):
        at = begin_of(until - number * BUCKET_S * SECOND)
        if _OFF_H[0] < (until - at) / SECOND / 3_600 < _OFF_H[1]:
            continue
        busy = 0.55 + 0.45 * math.sin(at / SECOND / 86_400 * 2 * math.pi - 2)
        found[at, ALL] = {"samples": 1}
        for service, an_hour in _SERVICES.items():
            found[at, service] = numbers = _numbers(round(an_hour * BUCKET_S / 3_600 * busy), busy)
            add(found[at, ALL], numbers)
    database = await Database.open(path, MIGRATIONS)
    try:
        await database.write(statistics.add_counted, found, 0)
    finally:
        await database.close()


def _numbers(jobs: int, busy: float) -> Tree:
    waited, failed = round(90 * busy**3 * SECOND), jobs // 8
    return {
        "queued": round(2 * jobs * busy),
        "running": min(jobs, 12),
        "uploaded": jobs,
        "uploaded_bytes": jobs * 200_000,
        "result_bytes": jobs * 600_000,
        "started": jobs,
        "waited_us": jobs * waited,
        "longest_wait_us": 3 * waited,
        "runs": jobs,
        "ran_us": jobs * 66 * SECOND,
        "completed": jobs - failed,
        "failed": {"exit_code": failed - failed // 2, "timeout": failed // 2} if failed else {},
    }
