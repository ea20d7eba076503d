"""What every store must show in lists."""

from typing import Any

import pytest

from server.domain.jobs import Job
from server.store import pages, users
from server.store.pages import Filter
from shared.wire import JobState, Reason
from tests.kit.store import Store, claim, every, new


async def test_pages_hold_each_job_once_while_others_arrive(jobs: Store) -> None:
    await jobs.added(*["ann"] * 5)
    first, following = await jobs.page(Filter(user_id="ann"), None, 3)
    await jobs.added("ann", "bob")
    second, end = await jobs.page(Filter(user_id="ann"), following, 3)
    assert [job.id for job in first + second] == [5, 4, 3, 2, 1]
    assert end is None


async def every_page(jobs: Store, where: Filter, limit: int) -> list[int]:
    found: list[int] = []
    before: int | None = None
    while True:
        page, before = await jobs.page(where, before, limit)
        found += [job.id for job in page]
        if before is None:
            return found


def passes(job: Job, where: dict[str, Any]) -> bool:
    """As a look at the job says."""
    asked = dict(where)
    tag, among = asked.pop("tag", None), asked.pop("among", tuple(JobState))
    since, until = asked.pop("since", 0), asked.pop("until", 10**9)
    return (
        tag in (None, *job.tags)
        and job.state in among
        and since <= job.created_at < until
        and not (asked.pop("top_level", False) and job.parent_id is not None)
        and all(getattr(job, name) == value for name, value in asked.items())
    )


CHOICES = [
    *every(
        user_id=(None, "a", "b", "c"),
        service=(None, "s"),
        state=(None, JobState.QUEUED, JobState.PROCESSING),
        tag=(None, "two", "rare"),
        submitted_by=(None, "p", "q"),
    ),
    *(
        most | more
        for most in every(
            user_id=(None, "a"), since=(None, 12, 99), until=(None, 0, 31), tag=(None, "two")
        )
        for more in (
            {},
            {"name": "nightly"},
            {"name": "other"},
            {"schedule_id": 2},
            {"reason": Reason.TIMEOUT},
            {"reason": Reason.TIMEOUT, "schedule_id": 1, "dead_letter": True},
            {"dead_letter": True},
            {"parent_id": 2},
            {"among": (JobState.FAILED, JobState.COMPLETED)},
            {"top_level": True},
            {"top_level": True, "service": "s", "state": JobState.QUEUED},
            {"top_level": True, "state": JobState.FAILED},
            {"top_level": True, "name": "nightly"},
            {"top_level": True, "parent_id": 2},
        )
    ),
]


async def test_each_choice_finds_what_a_look_at_every_job_finds(jobs, monkeypatch):
    monkeypatch.setattr(pages, "_SLICE", 4)
    for number in range(1, 41):
        tags = tuple(name for name, n in (("two", 2), ("three", 3), ("rare", 17)) if not number % n)
        job = await jobs.upload(
            "ab"[number % 3 // 2],
            "st"[number % 5 // 3],
            tags=tags,
            submitted_by="pq"[number % 7 // 6],
            name=("nightly", None)[number % 2],
            schedule_id=(1, None, 2)[number % 3],
            created_at=number,
        )
        if not number % 4:
            await jobs.moved(claim(job))
    await jobs.sql(
        "UPDATE jobs SET reason = 'timeout', dead_letter = 1, parent_id = 2, state = 'Failed', "
        "ended_at = 1 WHERE id % 4 = 0"
    )
    there, _ = await jobs.page(Filter(), None, 99)
    for where in CHOICES:
        expected = [job.id for job in there if passes(job, where)]
        assert await every_page(jobs, Filter(**where), 3) == expected, where
    _, following = await jobs.page(Filter(user_id="a", tag="rare"), None, 9)
    assert following is None, "the shorter list is looked through, to its end"
    assert await jobs.database.read(users.named, "", 1) == ["a"], "so many are named"


async def test_a_text_finds_jobs_by_number_name_tag_and_message(jobs, monkeypatch):
    monkeypatch.setattr(pages, "_SLICE", 4)
    for number in range(1, 31):
        name = {5: "Protein ÄTNA-10", 8: None, 20: "100% _done_"}.get(number, "other")
        tags = ("Straße", "x") if number in (3, 11) else ()
        message = "step 7 of 9" if number % 9 == 0 else "queued"
        await jobs.insert(new("ab"[number % 2], name=name, tags=tags), message)
    for text, expected in (
        ("ätna", [5]),
        ("PROTEIN ät", [5]),
        ("strasse", [11, 3]),
        ("STEP 7", [27, 18, 9]),
        ("30", [30]),
        ("010", [10]),
        ("10", [20, 10, 5]),
        ("%", [20]),
        ("_", [20]),
        ("no such", []),
        ("9" * 200, []),
    ):
        assert await every_page(jobs, Filter(text=text), 2) == expected, text
        own = [one for one in expected if one % 2]
        assert await every_page(jobs, Filter(user_id="b", text=text), 2) == own, text


async def test_jobs_are_counted_by_state_up_to_a_number_and_children_where_they_are_listed(jobs):
    for job in await jobs.added(*["ann"] * 6, "bob", "ann", "ann"):
        if job.id > 7:
            await jobs.moved(claim(job))
    await jobs.added("ann", service="t")
    await jobs.sql("UPDATE jobs SET parent_id = 1 WHERE id IN (2, 3, 4)")
    for where, queued, processing in (
        (Filter(), 8, 2),
        (Filter(user_id="ann"), 7, 2),
        (Filter(user_id="ann", service="s", state=JobState.FAILED), 6, 2),
        (Filter(service="t"), 1, 0),
        (Filter(top_level=True), 5, 2),
        (Filter(user_id="ann", top_level=True), 4, 2),
        (Filter(service="s", top_level=True), 4, 2),
        (Filter(user_id="ann", service="s", state=JobState.FAILED, top_level=True), 3, 2),
    ):
        found = await jobs.counts(where, 100)
        assert found is not None
        assert set(found) == set(JobState)
        assert (found[JobState.QUEUED], found[JobState.PROCESSING]) == (queued, processing), where
    for where in (Filter(), Filter(top_level=True)):
        assert (await jobs.counts(where, 2) or {})[JobState.QUEUED] == 2
    for where in (Filter(tag="x"), Filter(submitted_by="portal")):
        assert await jobs.counts(where, 2) is None


async def test_a_list_of_a_time_begins_there(jobs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_SLICE", 4)
    monkeypatch.setattr(pages, "_OUT_OF_ORDER", 4)
    for at in (1, 2, 4, 3, *range(5, 40)):  # two uploads were written in the other order
        await jobs.upload(created_at=at)
    found, _ = await jobs.page(Filter(until=4), None, 9)
    assert [job.id for job in found] == [4, 2, 1]
    assert await every_page(jobs, Filter(since=3, until=5), 9) == [4, 3]
