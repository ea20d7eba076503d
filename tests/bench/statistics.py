"""What the numbers of charts cost: each minute, and when somebody looks at them."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Final

import aiohttp
from structlog.testing import capture_logs

from server.store.migrations import MIGRATIONS
from server.store.statistics import SqlStatistics
from shared.sqlite.database import Database
from tests.bench.bulk import fill
from tests.bench.pages import MOST_MS
from tests.bench.store import cost, measured
from tests.bench.table import Row, median
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.past_week import write_past_week
from tests.support.server_http import driving

_A_MINUTE: Final = 6_000
"""Jobs: 100 each second."""
_MOVES: Final = (
    ("NULL", "Queued"),
    ("'Queued'", "Processing"),
    ("'Processing'", "Submitted"),
    ("'Submitted'", "Running"),
    ("'Running'", "Completed"),
)


async def statistics(folder: Path, few: int, many: int) -> list[Row]:
    """Beside few and many jobs that have ended."""
    idle, page = dict[int, float](), dict[int, float]()
    busy = 0.0
    for count in (few, many):
        at = folder / f"statistics{count}"
        path = at / "data" / "ferryman.sqlite"
        await fill(path, count, "Completed")
        await write_past_week(path, time.time_ns() // 1000)
        busy = await _busy_minute(path)
        with capture_logs():
            async with driving(at, FakeOrchestrator(), auth="none") as client:
                stage = client.server.context.statistics
                await stage.run_once()
                idle[count] = await cost(stage.run_once)
                url = f"{client.url}/charts?period=week"
                async with aiohttp.ClientSession(
                    headers={"Accept": "text/html,application/xhtml+xml"}
                ) as session:

                    async def load(session: aiohttp.ClientSession = session, url: str = url) -> int:
                        async with session.get(url) as answer:
                            return len(await answer.read())

                    page[count] = median(await measured(load))
    return [
        Row(
            f"the sample of an idle minute beside {many:,} ended jobs",
            f"{idle[many] * 1e3:.1f} ms",
            f"{few:,}: {idle[few] * 1e3:.1f} ms",
            idle[many] / idle[few],
            "≤ 20 ms: 0.03 % of a core",
            idle[many] <= 0.02,
        ),
        Row(
            f"CPU to count a minute with 100 jobs/s beside {many:,} ended jobs",
            f"{busy * 1e3:.0f} ms",
            f"{_A_MINUTE * len(_MOVES):,} events",
            None,
            "≤ 600 ms: 1 % of a core",
            busy <= 0.6,
        ),
        Row(
            f"the page with charts of a week beside {many:,} ended jobs, client included",
            f"{page[many] * 1e3:.0f} ms",
            f"{few:,}: {page[few] * 1e3:.0f} ms",
            page[many] / page[few],
            f"≤ {MOST_MS:.0f} ms",
            page[many] * 1e3 <= MOST_MS,
        ),
    ]


async def _busy_minute(path: Path) -> float:
    """Seconds of the processor that counting takes."""
    database = await Database.open(path, MIGRATIONS)
    try:
        numbers = SqlStatistics(database)
        await numbers.count()
        await asyncio.to_thread(_write_minute, path)
        begin = time.process_time()
        await numbers.count()
        return time.process_time() - begin
    finally:
        await database.close()


def _write_minute(path: Path) -> None:
    """The histories of the latest jobs, written again as if they had just run."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous=OFF")
        latest = f"(SELECT id FROM jobs ORDER BY id DESC LIMIT {_A_MINUTE})"
        database.execute(
            f"""
            INSERT OR IGNORE INTO attempts (job_id, number, state, agent, limits, timeout_s,
                                            claimed_at, waits_since, result_size)
            SELECT id, 1, 'Completed', 'a', limits, 60, queued_at, queued_at, 1000
            FROM jobs WHERE id IN {latest}
            """
        )
        for number, (before, state) in enumerate(_MOVES):
            database.execute(
                f"""
                INSERT INTO events (job_id, at, attempt, before, state, message, event)
                SELECT id, queued_at + (id % 60) * 1000000 + {number} * 20000, {int(number > 0)},
                       {before}, '{state}', 'x', 'job.{state.lower()}'
                FROM jobs WHERE id IN {latest}
                """
            )
