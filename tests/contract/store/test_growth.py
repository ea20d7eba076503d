"""What predictions follow from is read in short reads, and says what is there."""

from __future__ import annotations

import pytest

from server.domain.growth import Arrived
from server.domain.jobs import Bundle
from server.domain.statistics import RESOLUTIONS
from server.store.growth import SqlGrowth
from server.store.jobs import SqlJobs
from server.store.statistics import SqlStatistics
from shared.clock import SECOND
from shared.sqlite.database import Database
from tests.contract.store.conftest import new

START = 1_000_800 * SECOND


async def test_what_arrived_is_summed_by_service(database: Database, jobs: SqlJobs) -> None:
    growth = SqlGrowth(database)
    assert await growth.arrived(0) == (None, {})
    for service, at in (("a", START), ("a", START + 3_600 * SECOND), ("b", START)):
        bundle = Bundle(f"{at}{service}", 7, f"{at}{service}")
        await jobs.insert(new(service=service, created_at=at, bundle=bundle), "queued")
    await SqlStatistics(database).count()
    hour = RESOLUTIONS[-1].start(START)
    assert await growth.arrived(0) == (hour, {"a": Arrived(2, 14), "b": Arrived(1, 7)})
    first, later = await growth.arrived(hour + 1)
    assert first == hour + 3_600 * SECOND
    assert later == {"a": Arrived(1, 7)}


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 100])
async def test_each_job_is_counted_however_many_are_read_at_once(
    database: Database, jobs: SqlJobs, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("server.store.growth._AT_ONCE", at_once)
    growth = SqlGrowth(database)
    nothing = await growth.stored(START)
    assert (nothing.jobs, nothing.age_s) == (0, 0)
    for at in (9, 3, 3, 3, 5):
        await jobs.insert(new(created_at=START + at * SECOND), "queued")
    found = await growth.stored(START + 63 * SECOND)
    assert (found.jobs, found.age_s) == (5, 60)
    assert found.database_bytes == await database.size()
    assert found.free_bytes == await database.free_bytes()
    assert (await growth.stored(START)).age_s == 0, "a clock that was set back"
