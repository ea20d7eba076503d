"""What every store of jobs must do, against real SQLite with its real writer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.api import documents
from server.domain import states
from server.domain.errors import NoSuchJob, QueueFull, StorageFull
from server.domain.jobs import Bundle, Job, Move, NewJob, Result, Step
from server.domain.placement import AgentRoom
from server.domain.service import Service
from server.ports import Filter
from server.store import pages
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from server.store.queue import HELD
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable, NewerSchema
from shared.wire import JobState, Limits
from tests.support.jobs import moved

S = JobState


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await Database.open(tmp_path / "jobs.sqlite", MIGRATIONS)
    yield database
    await database.close()


@pytest.fixture
def told() -> list[Job]:
    return []


@pytest.fixture
def jobs(database: Database, told: list[Job]) -> SqlJobs:
    return SqlJobs(database, told.append)


def new(user: str = "ann", service: str = "s", **fields) -> NewJob:
    start: dict[str, Any] = {
        "bundle": Bundle("b", 1, "digest"),
        "limits": Limits(),
        "timeout_s": 60.0,
        "created_at": 10,
    }
    return NewJob(user, service, **(start | fields))


async def added(jobs: SqlJobs, *users: str, service: str = "s") -> list[Job]:
    return [(await jobs.insert(new(user, service), "queued"))[0] for user in users]


def claim(job: Job, agent: str = "node") -> Move:
    return Move(job.id, job.attempt, S.QUEUED, S.PROCESSING, 20, "sent", changes={"agent": agent})


async def test_a_move_and_its_event_are_one(jobs: SqlJobs, told: list[Job]) -> None:
    (job,) = await added(jobs, "ann")
    claimed = await moved(jobs, claim(job))
    assert (claimed.state, claimed.attempt, claimed.agent) == (S.PROCESSING, 1, "node")
    history = await jobs.events(job.id)
    assert [(event.before, event.state, event.attempt) for event in history] == [
        (None, S.QUEUED, 0),
        (S.QUEUED, S.PROCESSING, 1),
    ]
    assert [one.state for one in told] == [S.QUEUED, S.PROCESSING]


async def test_of_two_who_saw_the_same_only_one_moves(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    cancel = Move(job.id, 0, S.QUEUED, S.CANCELLED, 20, "cancelled", changes={"ended_at": 20})
    results = await asyncio.gather(jobs.move(claim(job)), jobs.move(cancel))
    assert (results[0] is None) != (results[1] is None)
    assert len(await jobs.events(job.id)) == 2


async def test_a_report_of_an_older_attempt_changes_nothing(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    first = await moved(jobs, claim(job))
    back = await jobs.move(Move(job.id, 1, S.PROCESSING, S.QUEUED, 30, "back"))
    assert back is not None
    second = await moved(jobs, claim(back))
    stale = Move(job.id, first.attempt, S.PROCESSING, S.SUBMITTED, 40, "late")
    assert await jobs.move(stale) is None
    assert (await jobs.get(job.id)) == second


async def test_several_steps_are_made_together_or_not_at_all(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    job = await moved(jobs, claim(job))
    move = Move(
        job.id,
        1,
        S.PROCESSING,
        S.COMPLETED,
        32,
        "done",
        changes={"payload_id": 5, "started_at": 31, "ended_at": 32, "expires_at": 99},
        facts={"result": Result("r", 3, "ab")},
        through=(Step(S.SUBMITTED, 30, "has it"), Step(S.RUNNING, 31, "started")),
    )
    done = await jobs.move(move)
    assert done is not None
    assert (done.state, done.result, done.payload_id) == (S.COMPLETED, Result("r", 3, "ab"), 5)
    assert await jobs.move(move) is None
    history = [(e.before, e.state, e.at, e.message) for e in await jobs.events(job.id)]
    assert history[2:] == [
        (S.PROCESSING, S.SUBMITTED, 30, "has it"),
        (S.SUBMITTED, S.RUNNING, 31, "started"),
        (S.RUNNING, S.COMPLETED, 32, "done"),
    ]


async def test_a_job_that_is_to_be_cancelled_is_not_claimed(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    await jobs.request_cancel(job.id, 15)
    assert await jobs.move(claim(job)) is None
    assert [one.id for one in await jobs.to_cancel()] == [job.id]


async def test_a_key_makes_one_job_however_often_and_for_whomever_it_is_sent(
    jobs: SqlJobs,
) -> None:
    keyed = new(idempotency_key="k")
    results = await asyncio.gather(*(jobs.insert(keyed, "queued") for _ in range(5)))
    assert len({job.id for job, _ in results}) == 1
    assert [fresh for _, fresh in results].count(True) == 1
    _, fresh = await jobs.insert(new("bob", idempotency_key="k"), "queued")
    assert fresh
    assert await jobs.forget_idempotency_keys(before=11) == 2
    assert (await jobs.insert(keyed, "queued"))[1]


@pytest.mark.parametrize(
    ("now", "released"),
    [(40, 0), (49, 0), (50, 1), (29, 1)],
    ids=["too early", "a moment too early", "due", "the clock was set back"],
)
async def test_a_delayed_job_is_not_in_the_queue_until_it_is_due(
    jobs: SqlJobs, now: int, released: int
) -> None:
    (job,) = await added(jobs, "ann")
    job = await moved(jobs, claim(job))
    await jobs.move(
        Move(job.id, 1, S.PROCESSING, S.QUEUED, 30, "", changes={"queued_at": 30, "not_before": 50})
    )
    rooms = [AgentRoom("node", None)]
    assert await jobs.claim_fairly(Service("s"), rooms, 9, now) == []
    assert await jobs.queued_services() == ["s"]
    assert await jobs.release_delayed(now) == released
    assert len(await jobs.claim_fairly(Service("s"), rooms, 9, now)) == released


async def test_a_place_in_the_queue_counts_the_users_older_jobs_that_may_be_sent(
    jobs: SqlJobs,
) -> None:
    first, *_, last = await added(jobs, "ann", "bob", "ann", "ann")
    await jobs.insert(new(service="t"), "queued")
    assert [await jobs.queued_before(job) for job in (first, last)] == [0, 2]
    sent = await moved(jobs, claim(first))
    assert await jobs.queued_before(last) == 1
    delay = {"queued_at": 30, "not_before": 50}
    await jobs.move(Move(sent.id, 1, S.PROCESSING, S.QUEUED, 30, "", changes=delay))
    assert await jobs.queued_before(last) == 1


async def test_of_fifty_at_once_as_many_are_taken_as_may_wait(jobs: SqlJobs) -> None:
    ends = await asyncio.gather(
        *(jobs.insert(new(), "queued", 3) for _ in range(50)),
        *(jobs.insert(new("bob"), "queued", 1) for _ in range(2)),
        jobs.insert(new(service="t"), "queued", 1),
        return_exceptions=True,
    )
    assert [type(end) is tuple for end in ends].count(True) == 3 + 1 + 1
    assert {type(end) for end in ends} == {tuple, QueueFull}
    assert len((await jobs.page(Filter(user_id="ann", service="s"), None, 99))[0]) == 3


async def test_of_fifty_at_once_as_many_are_taken_as_the_users_bytes_allow(jobs: SqlJobs) -> None:
    size = new().bundle.size
    ends = await asyncio.gather(
        *(jobs.insert(new(), "queued", 0, 3 * size) for _ in range(50)),
        *(jobs.insert(new("bob"), "queued", 0, size) for _ in range(2)),
        return_exceptions=True,
    )
    assert [type(end) is tuple for end in ends].count(True) == 3 + 1
    assert {type(end) for end in ends} == {tuple, StorageFull}
    assert (await jobs.stored("ann"), await jobs.stored("bob")) == (3 * size, size)


async def test_results_count_as_stored_until_the_job_is_cleaned(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    job = await moved(jobs, claim(job))
    assert not await jobs.attach_result(job.key, Result("r", 5, "00"))  # it is under way
    assert await jobs.move(
        Move(job.id, 1, S.PROCESSING, S.CANCELLED, 20, "", changes={"ended_at": 20})
    )
    assert await jobs.attach_result(job.key, Result("r", 5, "00"))
    assert await jobs.stored("ann") == new().bundle.size + 5
    assert (await jobs.get(job.id)).result == Result("r", 5, "00")
    await jobs.clean([Move(job.id, 1, S.CANCELLED, S.CLEANED, 30, "")])
    assert await jobs.stored("ann") == 0


async def test_a_repeat_under_a_key_is_no_further_job_that_waits(jobs: SqlJobs) -> None:
    keyed = new(idempotency_key="k")
    (job, _), again = [await jobs.insert(keyed, "queued", 1) for _ in range(2)]
    assert again == (job, False)


async def test_slots_are_counted_by_service_user_and_agent(jobs: SqlJobs) -> None:
    found = await added(jobs, "ann", "ann", "bob")
    for job, agent in zip(found, "xxy", strict=True):
        await moved(jobs, claim(job, agent))
    held = {(one.service, one.user_id, one.agent): one.slots for one in await jobs.held()}
    assert held == {("s", "ann", "x"): 2, ("s", "bob", "y"): 1}


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
        (None, S.QUEUED, S.PROCESSING),
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


async def test_a_job_that_is_not_there_says_so(jobs: SqlJobs) -> None:
    with pytest.raises(NoSuchJob, match="Job 4 not found in the database"):
        await jobs.get(4)
    with pytest.raises(NoSuchJob):
        await jobs.events(4)


async def test_files_in_use_are_found_among_many(jobs: SqlJobs) -> None:
    await jobs.insert(new(bundle=Bundle("mine", 1, "d")), "queued")
    names = [f"orphan{number}" for number in range(1_200)]
    assert await jobs.files_in_use([*names, "mine"]) == {"mine"}


def test_what_holds_a_slot_is_the_same_in_sql_and_in_the_table() -> None:
    assert {word.strip(" '()") for word in HELD.removeprefix("state IN").split(",")} == {
        state.value for state in states.HOLDS_SLOT
    }


# -- the adapter


async def test_a_change_that_fails_spoils_no_other(database: Database) -> None:
    async def good(tx):
        await tx.rows("INSERT INTO meta VALUES (:k, 'v')", {"k": "good"})

    async def bad(tx):
        await tx.rows("INSERT INTO meta VALUES ('bad', 'v')")
        raise KeyError("no")

    results = await asyncio.gather(
        database.write(good), database.write(bad), return_exceptions=True
    )
    assert isinstance(results[1], KeyError)
    found = await database.rows("SELECT key FROM meta")
    assert [row["key"] for row in found] == ["good"]


async def test_what_was_handed_in_is_kept_when_the_database_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    database = await Database.open(path, MIGRATIONS)

    async def insert(number: int) -> None:
        await database.write(
            lambda tx: tx.rows("INSERT INTO meta VALUES (:k, '')", {"k": str(number)})
        )

    pending = [asyncio.ensure_future(insert(number)) for number in range(5)]
    await asyncio.gather(*pending)
    await database.close()
    with pytest.raises(DatabaseUnavailable):
        await database.write(lambda tx: tx.rows("SELECT 1"))
    again = await Database.open(path, MIGRATIONS)
    try:
        assert len(await again.rows("SELECT * FROM meta")) == 5
    finally:
        await again.close()


async def test_a_file_that_is_no_database_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(DatabaseUnavailable) as caught:
        await (await Database.open(path, MIGRATIONS)).close()
    assert caught.value.damaged


async def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    database = await Database.open(path, (*MIGRATIONS, ("CREATE TABLE later (x TEXT) STRICT",)))
    await database.close()
    with pytest.raises(NewerSchema, match="newer version"):
        await (await Database.open(path, MIGRATIONS)).close()


async def test_warnings_of_the_upload_outlast_those_of_attempts(jobs: SqlJobs) -> None:
    job, _ = await jobs.insert(new(warnings=("a name",)), "queued")
    job = await moved(jobs, claim(job))
    changes = {"warnings": ["of an attempt"]}
    assert await jobs.move(Move(job.id, 1, S.PROCESSING, S.QUEUED, 30, "back", changes=changes))
    document = documents.job_doc(await jobs.get(job.id), None)
    assert document.warnings == ["a name", "of an attempt"]
