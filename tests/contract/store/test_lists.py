"""What every store must show in lists."""

from __future__ import annotations

import itertools

import pytest

from server.ports import Filter
from server.store import pages
from server.store.jobs import SqlJobs
from shared.wire import JobState
from tests.contract.store.conftest import added, claim, new
from tests.support.jobs import moved


async def test_pages_hold_each_job_once_while_others_arrive(jobs: SqlJobs) -> None:
    await added(jobs, *["ann"] * 5)
    first, following = await jobs.page(Filter(user_id="ann"), None, 3)
    await added(jobs, "ann", "bob")
    second, end = await jobs.page(Filter(user_id="ann"), following, 3)
    assert [job.id for job in first + second] == [5, 4, 3, 2, 1]
    assert end is None


async def every_page(jobs: SqlJobs, where: Filter, limit: int) -> list[int]:
    found: list[int] = []
    before: int | None = None
    while True:
        page, before = await jobs.page(where, before, limit)
        found += [job.id for job in page]
        if before is None:
            return found


async def test_each_choice_finds_what_a_look_at_every_job_finds(
    jobs: SqlJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_SLICE", 4)
    every = []
    for number in range(40):
        tags = tuple(
            tag for tag, each in (("two", 2), ("three", 3), ("rare", 17)) if not number % each
        )
        job, _ = await jobs.insert(
            new(
                "ab"[number % 3 // 2],
                "st"[number % 5 // 3],
                tags=tags,
                submitted_by="pq"[number % 7 // 6],
            ),
            "queued",
        )
        if not number % 4:
            job = await moved(jobs, claim(job))
        every.append(job)
    choices = itertools.product(
        (None, "a", "b", "c"),
        (None, "s"),
        (None, JobState.QUEUED, JobState.PROCESSING),
        (None, "two", "rare"),
        (None, "p", "q"),
    )
    for user, service, state, tag, by in choices:
        expected = [
            job.id
            for job in reversed(every)
            if user in (None, job.user_id)
            and service in (None, job.service)
            and state in (None, job.state)
            and (tag is None or tag in job.tags)
            and by in (None, job.submitted_by)
        ]
        where = Filter(user, service, state, tag, by)
        assert await every_page(jobs, where, 3) == expected, where


async def test_the_shorter_of_two_lists_is_looked_through(
    jobs: SqlJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_SLICE", 4)
    for user, tag in (("bob", "all"), ("ann", "rare"), *[("ann", "all")] * 20):
        await jobs.insert(new(user, tags=(tag,), submitted_by="portal"), "queued")
    for where in (
        Filter(user_id="bob", tag="all"),
        Filter(user_id="ann", tag="rare"),
        Filter(user_id="bob", submitted_by="portal"),
        Filter(tag="rare", submitted_by="portal"),
    ):
        found, following = await jobs.page(where, None, 9)
        assert (len(found), following) == (1, None), where
