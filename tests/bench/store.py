"""Lists beside many ended jobs, and dispatch beside many delayed ones, straight from the store."""

from __future__ import annotations

import asyncio
import functools
import itertools
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from server.domain.choose import Waiting
from server.domain.service import Service
from server.ports import Filter
from server.store import claims
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from shared.sql import Transaction
from shared.sqlite.database import Database
from shared.wire import JobState, Reason
from tests.bench.bulk import fill
from tests.bench.table import Row, median, percentile

ROUNDS = 20


async def measured(call: Callable[[], Awaitable[object]]) -> list[float]:
    """Seconds of each round."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begin)
    return times


async def cost(call: Callable[[], Awaitable[object]]) -> float:
    """Median, in seconds."""
    return median(await measured(call))


def choices(newest: int) -> list[Filter]:
    """Filters of lists: none, each, and several at once.

    Args:
        newest: when the last job was uploaded; the one before, a microsecond earlier.
    """
    found = [
        Filter(user, service, state, tag)
        for user, service, state, tag in itertools.product(
            (None, "user3", "nobody"),
            (None, "example"),
            (None, JobState.COMPLETED, JobState.FAILED),
            (None, "each", "rare", "none"),
        )
    ]
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
    return found + [Filter(**{**more, **given}) for given in further for more in beside]


async def lists(folder: Path, few: int, many: int) -> list[Row]:
    """The slowest first page of any choice, and what a sweep waits while lists are read."""
    found: dict[int, dict[int, float]] = {}
    p99: dict[int, float] = {}
    rows = []
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
        jobs = SqlJobs(database, lambda job: None)
        costs, every = dict[int, float](), list[float]()
        for which, where in enumerate(choices(length)):
            times = await measured(functools.partial(jobs.page, where, None, 50))
            costs[which] = median(times)
            every += times
        found[length], p99[length] = costs, percentile(every, 0.99)
        if length == many:
            rows.append(await beside(jobs))
        await database.close()
    slowest = max(found[many], key=lambda name: found[many][name])
    large, small = found[many][slowest], found[few][slowest]
    rows.insert(
        0,
        Row(
            f"a list page with {many:,} ended jobs, the slowest of {len(found[many])} choices",
            f"{large * 1e3:.1f} ms",
            f"with {few:,}: {small * 1e3:.1f} ms",
            large / small,
            "≤ 10 ms",
            large <= 0.010,
        ),
    )
    rows.insert(
        1,
        Row(
            "… the 99th percentile of all of them",
            f"{p99[many] * 1e3:.1f} ms",
            f"with {few:,}: {p99[few] * 1e3:.1f} ms",
            p99[many] / p99[few],
            "≤ 10 ms",
            p99[many] <= 0.010,
        ),
    )
    plain = choices(many).index(Filter(state=JobState.COMPLETED))
    large, small = found[many][plain], found[few][plain]
    rows.insert(
        2,
        Row(
            "… by state alone",
            f"{large * 1e3:.1f} ms",
            f"with {few:,}: {small * 1e3:.1f} ms",
            large / small,
            "",
            None,
        ),
    )
    return [*rows, await collapsed(folder / f"lists{many}.sqlite", many)]


async def collapsed(path: Path, many: int) -> Row:
    """The slowest page, or counts, of a list without children, where nearly all jobs are some."""
    with sqlite3.connect(path) as raw:
        raw.execute(
            "UPDATE jobs SET parent_id = CASE WHEN id % 1000 != 1 THEN id - (id - 1) % 1000 END"
        )
        raw.execute("UPDATE jobs SET state = 'Running' WHERE parent_id IS NULL AND id % 3 = 0")
    database = await Database.open(path, MIGRATIONS)
    jobs, costs = SqlJobs(database, lambda job: None), list[float]()
    chosen: tuple[dict[str, Any], ...] = (
        *({}, {"user_id": "user0"}, {"user_id": "nobody"}, {"state": JobState.COMPLETED}),
        *({"service": "example"}, {"user_id": "user0", "service": "example"}),
        *({"tag": "each"}, {"tag": "rare"}, {"tag": "none"}, {"text": "nowhere"}),
    )
    for given in chosen:
        where = Filter(top_level=True, **given)
        costs.append(await cost(functools.partial(jobs.page, where, None, 50)))
        costs.append(await cost(functools.partial(jobs.counts, where, 10_000)))
    every = await cost(functools.partial(jobs.page, Filter(), None, 50))
    await database.close()
    return Row(
        f"… of the top level beside {many - many // 1_000:,} children, and its counts",
        f"{max(costs) * 1e3:.1f} ms",
        f"with the children, unfiltered: {every * 1e3:.1f} ms",
        max(costs) / every,
        "≤ 10 ms",
        max(costs) <= 0.010,
    )


async def beside(jobs: SqlJobs) -> Row:
    """What the Sender reads, alone and while others read lists without a pause."""
    waits: dict[bool, list[float]] = {False: [], True: []}
    for busy, times in waits.items():
        stop = asyncio.Event()

        async def read(stop: asyncio.Event = stop) -> None:
            while not stop.is_set():
                await jobs.page(Filter(tag="each", service="example"), None, 50)

        readers = [asyncio.create_task(read()) for _ in range(8 if busy else 0)]
        for _ in range(100):
            begin = time.perf_counter()
            await jobs.held()
            times.append(time.perf_counter() - begin)
        stop.set()
        await asyncio.gather(*readers)
    alone, with_lists = (percentile(waits[busy], 0.95) for busy in (False, True))
    return Row(
        "a sweep's read (p95) while eight lists are read without a pause",
        f"{with_lists * 1e3:.2f} ms",
        f"alone {alone * 1e3:.2f} ms",
        with_lists / alone,
        "",
        None,
    )


async def _choose(tx: Transaction) -> list[Waiting]:
    return await claims._due(tx, Service("example", 10, 10), {}, 10, "")


async def delayed(folder: Path, many: int) -> list[Row]:
    """Looking for what may be sent: ten jobs that may, beside none and beside many that may not."""
    costs = {}
    for length in (0, many):
        path = folder / f"delayed{length}.sqlite"
        await fill(path, length + 10, "Queued")
        with sqlite3.connect(path) as raw:
            raw.execute("UPDATE jobs SET user_id = 'user3'")
            raw.execute("UPDATE jobs SET not_before = 1 << 60 WHERE id > 10")
            raw.execute("UPDATE jobs SET queued_at = 1")
        database = await Database.open(path, MIGRATIONS)
        jobs = SqlJobs(database, lambda job: None)
        choose = functools.partial(database.write, _choose)

        async def sweep(jobs: SqlJobs = jobs, choose: Callable[[], Any] = choose) -> None:
            await jobs.queued_services()
            await jobs.release_delayed(5)
            assert len(await choose()) == 10

        costs[length] = await cost(sweep)
        await database.close()
    ratio = costs[many] / costs[0]
    return [
        Row(
            f"choosing 10 jobs beside {many:,} delayed ones of the user",
            f"{costs[many] * 1e3:.2f} ms",
            f"beside none: {costs[0] * 1e3:.2f} ms",
            ratio,
            "≤ 1.5",
            ratio <= 1.5,
        )
    ]
