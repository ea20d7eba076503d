"""What every store must do when tags of a job are changed."""

from __future__ import annotations

import asyncio

import pytest

from server.domain.errors import NoSuchJob
from server.domain.upload_fields import TooManyTags
from server.ports import Filter
from server.store.jobs import SqlJobs
from tests.contract.store.conftest import new


async def tagged(jobs: SqlJobs, tag: str) -> list[int]:
    return (await jobs.ids(Filter(tag=tag), None, 99))[0]


async def test_tags_are_added_and_removed_with_an_event(jobs: SqlJobs) -> None:
    job, _ = await jobs.insert(new(tags=("a", "b")), "queued")
    changed = await jobs.change_tags(job.id, ("c", "a", "c"), ("b", "z"), 30, "ann")
    assert changed.tags == ("a", "c")
    assert await jobs.get(job.id) == changed
    assert [await tagged(jobs, tag) for tag in "abcz"] == [[job.id], [], [job.id], []]
    *_, event = await jobs.events(job.id)
    assert (event.event, event.before, event.state, event.at) == ("job.tagged", None, job.state, 30)
    assert event.fields == {"by": "ann", "tags": ["a", "c"]}
    assert (await jobs.change_tags(job.id, ("a",), ("b",), 40, "ann")).tags == ("a", "c")
    assert len(await jobs.events(job.id)) == 2


async def test_a_job_has_thirty_two_tags_at_most_however_they_come(jobs: SqlJobs) -> None:
    job, _ = await jobs.insert(new(tags=tuple(f"t{n}" for n in range(30))), "queued")
    calls = [jobs.change_tags(job.id, (f"new{n}",), (), 30, "ann") for n in range(5)]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(one, TooManyTags) for one in ended) == 3
    assert len((await jobs.get(job.id)).tags) == 32
    assert len(await jobs.events(job.id)) == 3
    swapped = await jobs.change_tags(job.id, ("one", "two"), ("t0", "t1"), 30, "ann")
    assert len(swapped.tags) == 32


async def test_no_tags_of_a_job_that_is_not_there(jobs: SqlJobs) -> None:
    with pytest.raises(NoSuchJob):
        await jobs.change_tags(9, ("a",), (), 30, "ann")
