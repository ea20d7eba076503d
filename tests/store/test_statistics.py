"""Buckets of what happened when are added to, read by service and time, and deleted in time."""

from __future__ import annotations

import pytest

from server.domain.statistics import ALL
from server.store import statistics as buckets
from shared.clock import SECOND
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.kit.store import Calls, claim

START = 1_000_800 * SECOND
NEXT = START + 600 * SECOND


@pytest.fixture
def statistics(database: Database) -> Calls:
    return Calls(database, buckets)


async def test_numbers_are_added_and_of_longest_times_the_larger_is_kept(statistics) -> None:
    await statistics.add_counted({(START, ALL): {"started": 1, "longest_wait_us": 7}}, 0)
    more = {"started": 2, "longest_wait_us": 5, "failed": {"timeout": 1}}
    await statistics.add_counted({(START, ALL): more, (NEXT, "a"): {"started": 9}}, 0)
    ((at, service, numbers),) = await statistics.buckets(START, [ALL])
    assert (at, service) == (START, ALL)
    assert numbers == {"started": 3, "longest_wait_us": 7, "failed": {"timeout": 1}}
    assert await statistics.buckets(NEXT, [ALL, "b"]) == []
    assert await statistics.buckets(NEXT, [ALL, "a"]) == [(NEXT, "a", {"started": 9})]
    await statistics.add_counted({}, NEXT)
    assert await statistics.buckets(0, [ALL, "a"]) == [(NEXT, "a", {"started": 9})], "it is deleted"


async def test_jobs_are_counted_by_service_and_state(jobs, statistics) -> None:
    for service in ("a", "b"):
        await jobs.added("ann", service=service)
    job, _ = await jobs.added("ann", "bob", service="b")
    await jobs.move(claim(job))
    assert await statistics.queued() == {"a": (1, 10), "b": (2, 10)}
    assert await statistics.under_way() == {("b", JobState.PROCESSING): 1}
