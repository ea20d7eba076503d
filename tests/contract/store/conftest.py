"""The database that the store's conformance suite runs on.

Another database only has to pass the suite: its adapter (``shared.sql.Database``) is opened in
``database``, as one more parameter. Everything else of the suite knows the store only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.domain.jobs import Bundle, Job, Move, NewJob
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from shared.sqlite.database import Database
from shared.wire import JobState, Limits
from tests.kit.clock import SimClock


@pytest.fixture
def clock() -> SimClock:
    """The database's."""
    return SimClock()


@pytest.fixture
async def database(tmp_path: Path, clock: SimClock) -> AsyncIterator[Database]:
    database = await Database.open(tmp_path / "server.sqlite", MIGRATIONS, clock)
    yield database
    await database.close()


@pytest.fixture
def changed() -> list[Job]:
    """Each job that a commit has changed, as it was then."""
    return []


@pytest.fixture
def jobs(database: Database, changed: list[Job]) -> SqlJobs:
    return SqlJobs(database, changed.append)


async def added(jobs: SqlJobs, *users: str, service: str = "s") -> list[Job]:
    return [(await jobs.insert(new(user, service), "queued"))[0] for user in users]


def new(user: str = "ann", service: str = "s", **fields: Any) -> NewJob:
    start: dict[str, Any] = {
        "bundle": Bundle("b", 1, "digest"),
        "limits": Limits(),
        "timeout_s": 60.0,
        "created_at": 10,
    }
    return NewJob(user, service, **(start | fields))


def claim(job: Job, agent: str = "node") -> Move:
    changes = {"agent": agent}
    return Move(
        job.id, job.attempt, JobState.QUEUED, JobState.PROCESSING, 20, "sent", changes=changes
    )
