"""The database that every contract of the store is held against."""

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
from tests.support.sim_clock import SimClock


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
def jobs(database: Database) -> SqlJobs:
    return SqlJobs(database, lambda job: None)


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
