"""The store on a real database, as tests call it: another one needs another :class:`Store` only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.domain.jobs import Bundle, Job, Move, NewJob, Result, Step
from server.domain.service import Service
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from shared.sql import Row
from shared.sqlite.database import Database
from shared.wire import JobState, Limits
from tests.kit.batches import check_batches
from tests.kit.clock import SimClock


class Store(SqlJobs):
    def __init__(self, database: Database, changed: list[Job], **how: Any) -> None:
        super().__init__(database, changed.append, **how)
        self.database, self.changed = database, changed

    async def upload(
        self, user: str = "ann", service: str = "s", *, message: str = "queued", **fields: Any
    ) -> Job:
        return (await self.insert(new(user, service, **fields), message))[0]

    async def added(self, *users: str, service: str = "s") -> list[Job]:
        """A job of each."""
        return [await self.upload(user, service) for user in users]

    async def claimed(self, agent: str = "node", **fields: Any) -> Job:
        """A job that was sent to the agent."""
        return await self.moved(claim(await self.upload(**fields), agent))

    async def moved(self, move: Move) -> Job:
        """Make a move that must be made; the job then."""
        job = await self.move(move)
        assert job is not None
        return job

    async def to(self, job: Job, state: JobState, at: int = 30, **how: Any) -> Job:
        """Make a move of the job as it was seen."""
        return await self.moved(Move(job.id, job.attempt, job.state, state, at, "moved", **how))

    async def children_of(self, parent: Job) -> list[Job]:
        found = await self.rows(f"SELECT id FROM jobs WHERE parent_id = {parent.id} ORDER BY id")
        return [await self.get(row["id"]) for row in found]

    async def rows(self, sql: str) -> Sequence[Row]:
        return await self.database.rows(sql)

    async def sql(self, sql: str) -> None:
        await self.database.write(lambda tx: tx.rows(sql))

    async def check(self) -> None:
        await check_batches(self.database)


def new(user: str = "ann", service: str = "s", **fields: Any) -> NewJob:
    start: dict[str, Any] = {
        "bundle": Bundle("b", 1, "digest"),
        "limits": Limits(),
        "timeout_s": 60.0,
        "created_at": 10,
    }
    return NewJob(user, service, **(start | fields))


def claim(job: Job, agent: str = "node") -> Move:
    how: dict[str, Any] = {"changes": {"agent": agent}}
    return Move(job.id, job.attempt, JobState.QUEUED, JobState.PROCESSING, 20, "sent", **how)


def end(
    job: Job,
    state: JobState,
    through: tuple[Step, ...] = (),
    *,
    expires_at: int = 30,
    **facts: Any,
) -> Move:
    """It ends at 30."""
    changes = {"ended_at": 30, "expires_at": expires_at}
    how: dict[str, Any] = {"changes": changes, "facts": facts, "through": through}
    return Move(job.id, job.attempt, job.state, state, 30, "ended", **how)


def clean(job: Job) -> Move:
    return Move(job.id, job.attempt, job.state, JobState.CLEANED, 40, "")


def result(name: str, size: int = 3, **more: Any) -> Result:
    return Result(name, size, "ab", **more)


def service(name: str = "s", **more: Any) -> Service:
    """That takes many jobs."""
    return Service(name, **({"runs_per_user": 100, "max_runs": 100} | more))


@pytest.fixture
def clock() -> SimClock:
    """The database's."""
    return SimClock()


@pytest.fixture
async def database(tmp_path: Path, clock: SimClock) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "server.sqlite", MIGRATIONS, clock)
    yield opened
    await opened.close()


@pytest.fixture
def jobs(database: Database) -> Store:
    return Store(database, [])
