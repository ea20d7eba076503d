"""Moves of jobs in the store, beside the same number of bare UPDATEs and INSERTs."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server.domain.jobs import Bundle, Move, NewJob
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from shared.sqlite.database import Database
from shared.wire import JobState, Limits
from tests.bench.table import Row, median

PATH = (JobState.PROCESSING, JobState.SUBMITTED, JobState.RUNNING, JobState.COMPLETED)
ROUNDS = 3


async def moves(folder: Path, jobs: int) -> list[Row]:
    """Moves a second, one after the other and 50 at a time."""
    rows = []
    for at_once in (1, 50):
        count = jobs if at_once > 1 else max(jobs // 10, 50)
        ours, bare = [], []
        for number in range(ROUNDS):
            path = folder / f"moves{at_once}-{number}.sqlite"
            ours.append(await _ours(path, count, at_once))
            bare.append(_bare(path.with_suffix(".bare"), count * len(PATH), at_once))
        rows.append(
            Row(
                f"moves in the store, {at_once} at once",
                f"{median(ours):,.0f}/s",
                f"bare UPDATE and INSERT, {at_once} a commit: {median(bare):,.0f}/s",
                median(ours) / median(bare),
                "",
                None,
            )
        )
    return rows


async def _ours(path: Path, count: int, at_once: int) -> float:
    database = await Database.open(path, MIGRATIONS)
    store = SqlJobs(database, lambda job: None)
    bundle = Bundle("f" * 32, 100, "d" * 64)
    ids = [
        (await store.insert(NewJob("ann", "example", bundle, Limits(), 60.0, 10), ""))[0].id
        for _ in range(count)
    ]

    async def life(some: list[int]) -> None:
        for job_id in some:
            before, attempt = JobState.QUEUED, 0
            for state in PATH:
                changes = {"agent": "north"} if state is JobState.PROCESSING else {}
                made = await store.move(
                    Move(job_id, attempt, before, state, 20, "bench", changes=changes)
                )
                assert made is not None
                before, attempt = state, made.attempt

    begin = time.perf_counter()
    await asyncio.gather(*(life(ids[start::at_once]) for start in range(at_once)))
    took = time.perf_counter() - begin
    await database.close()
    return count * len(PATH) / took


def _bare(path: Path, count: int, at_once: int) -> float:
    """An UPDATE of a row of two columns and an INSERT, durable as ours are."""
    with sqlite3.connect(path, isolation_level=None) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT)")
        database.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, job_id INT, state TEXT)")
        rows = count // len(PATH)
        database.executemany("INSERT INTO jobs VALUES (?, '')", [(n,) for n in range(rows)])
        begin = time.perf_counter()
        for start in range(0, count, at_once):
            with _transaction(database):
                for number in range(start, min(start + at_once, count)):
                    job_id, state = number % rows, PATH[number // rows % len(PATH)]
                    database.execute("UPDATE jobs SET state = ? WHERE id = ?", (state, job_id))
                    database.execute(
                        "INSERT INTO events (job_id, state) VALUES (?, ?)", (job_id, state)
                    )
        return count / (time.perf_counter() - begin)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    yield
    database.execute("COMMIT")
