"""Lists beside many ended jobs, straight from the store."""

import functools
import sqlite3
from pathlib import Path
from typing import Any

from server.store.listed import Filter
from server.store.migrations import MIGRATIONS
from shared.sqlite.database import Database
from shared.wire import JobState, Reason
from tests.bench.bulk import fill
from tests.bench.table import Row, measured, median, percentile
from tests.kit.store import Jobs, every


def choices(newest: int) -> list[Filter]:
    """None, each, and several at once. Jobs came up to ``newest``, one in each microsecond."""
    found = every(
        user_id=(None, "user3", "nobody"),
        service=(None, "example"),
        state=(None, JobState.COMPLETED, JobState.FAILED),
        tag=(None, "each", "rare", "none"),
    )
    further: tuple[dict[str, Any], ...] = (
        {"name": "nightly"},
        {"reason": Reason.TIMEOUT},
        {"dead_letter": True},
        {"parent_id": 1},
        {"schedule_id": 1},
        {"since": newest - 1_000},
        {"until": newest - 1_000},
        {"until": newest // 2},
        {"among": (JobState.QUEUED, JobState.FAILED, JobState.CANCELLED)},
    )
    beside: tuple[dict[str, Any], ...] = (
        {},
        {"user_id": "user3"},
        {"tag": "rare"},
        {"state": JobState.COMPLETED, "service": "example"},
        {"since": newest // 2, "user_id": "nobody"},
    )
    return [
        Filter(**one) for one in [*found, *(more | given for given in further for more in beside)]
    ]


async def lists(folder: Path, few: int, many: int) -> list[Row]:
    """The slowest first page of any choice, and what a sweep waits while lists are read."""
    found: dict[int, dict[int, float]] = {}
    p99: dict[int, float] = {}
    for length in (few, many):
        path = folder / f"lists{length}.sqlite"
        await fill(path, length, "Completed")
        with sqlite3.connect(path) as raw:
            raw.execute("INSERT INTO job_tags SELECT 'each', id FROM jobs")
            raw.execute("INSERT INTO job_tags SELECT 'rare', id FROM jobs WHERE id % 1000 = 0")
            raw.execute(
                "UPDATE jobs SET created_at = id, name = 'nightly', reason = 'timeout', "
                "dead_letter = 1, parent_id = CASE WHEN id > 1 THEN 1 END, schedule_id = 1 "
                "WHERE id % 2 = 0"
            )
            raw.execute("UPDATE jobs SET created_at = id WHERE id % 2")
        database = await Database.open(path, MIGRATIONS)
        jobs = Jobs(database, lambda job: None)
        costs, every = dict[int, float](), list[float]()
        for which, where in enumerate(choices(length)):
            times = await measured(functools.partial(jobs.page, where, None, 50))
            costs[which] = median(times)
            every += times
        found[length], p99[length] = costs, percentile(every, 0.99)
        await database.close()
    slowest = max(found[many], key=lambda name: found[many][name])
    return [
        Row(
            what,
            f"{large * 1e3:.1f} ms",
            f"with {few:,}: {small * 1e3:.1f} ms",
            large / small,
            "≤ 10 ms",
            large <= 0.010,
        )
        for what, large, small in (
            (
                f"a list page with {many:,} ended jobs, the slowest of {len(found[many])} choices",
                found[many][slowest],
                found[few][slowest],
            ),
            ("… the 99th percentile of all of them", p99[many], p99[few]),
        )
    ]
