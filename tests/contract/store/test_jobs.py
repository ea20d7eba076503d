"""What every store must do with jobs."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from server.domain import states
from server.domain.allowances import DAY, DayUsed
from server.domain.choose import Candidate
from server.domain.errors import NoSuchJob, QueueFull, StorageFull
from server.domain.jobs import Bundle, Job, Move, Result, Step
from server.domain.service import Service
from server.http import documents
from server.ports import Filter
from server.store.jobs import SqlJobs
from server.store.statements import HELD
from shared.wire import JobState
from tests.contract.store.conftest import added, claim, new
from tests.kit.jobs import moved


async def test_a_move_and_its_event_are_one(jobs: SqlJobs, changed: list[Job]) -> None:
    (job,) = await added(jobs, "ann")
    claimed = await moved(jobs, claim(job))
    assert (claimed.state, claimed.attempt, claimed.agent) == (JobState.PROCESSING, 1, "node")
    history = await jobs.events(job.id)
    assert [(event.before, event.state, event.attempt) for event in history] == [
        (None, JobState.QUEUED, 0),
        (JobState.QUEUED, JobState.PROCESSING, 1),
    ]
    assert [one.state for one in changed] == [JobState.QUEUED, JobState.PROCESSING]


async def test_of_two_who_saw_the_same_only_one_moves(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    cancel = Move(
        job.id, 0, JobState.QUEUED, JobState.CANCELLED, 20, "cancelled", changes={"ended_at": 20}
    )
    results = await asyncio.gather(jobs.move(claim(job)), jobs.move(cancel))
    assert (results[0] is None) != (results[1] is None)
    assert len(await jobs.events(job.id)) == 2


async def test_jobs_in_some_states_come_oldest_first(jobs: SqlJobs) -> None:
    for number, job in enumerate(await added(jobs, *"abcd")):
        await moved(jobs, claim(job, agent="zyxw"[number]))
        if number % 2 == 0:
            move = Move(job.id, 1, JobState.PROCESSING, JobState.SUBMITTED, 30, "has it")
            await moved(jobs, move)
    assert [job.id for job in await jobs.in_states(states.HOLDS_SLOT)] == [1, 2, 3, 4]
    assert [job.id for job in await jobs.in_states(states.AT_AGENT)] == [1, 3]


async def test_a_report_of_an_older_attempt_changes_nothing(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    first = await moved(jobs, claim(job))
    back = await jobs.move(Move(job.id, 1, JobState.PROCESSING, JobState.QUEUED, 30, "back"))
    assert back is not None
    second = await moved(jobs, claim(back))
    stale = Move(job.id, first.attempt, JobState.PROCESSING, JobState.SUBMITTED, 40, "late")
    assert await jobs.move(stale) is None
    assert (await jobs.get(job.id)) == second


async def test_several_steps_are_made_together_or_not_at_all(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    job = await moved(jobs, claim(job))
    move = Move(
        job.id,
        1,
        JobState.PROCESSING,
        JobState.COMPLETED,
        32,
        "done",
        changes={"payload_id": 5, "started_at": 31, "ended_at": 32, "expires_at": 99},
        facts={"result": Result("r", 3, "ab")},
        through=(Step(JobState.SUBMITTED, 30, "has it"), Step(JobState.RUNNING, 31, "started")),
    )
    done = await jobs.move(move)
    assert done is not None
    assert (done.state, done.result, done.payload_id) == (
        JobState.COMPLETED,
        Result("r", 3, "ab"),
        5,
    )
    assert await jobs.move(move) is None
    history = [(e.before, e.state, e.at, e.message) for e in await jobs.events(job.id)]
    assert history[2:] == [
        (JobState.PROCESSING, JobState.SUBMITTED, 30, "has it"),
        (JobState.SUBMITTED, JobState.RUNNING, 31, "started"),
        (JobState.RUNNING, JobState.COMPLETED, 32, "done"),
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
        Move(
            job.id,
            1,
            JobState.PROCESSING,
            JobState.QUEUED,
            30,
            "",
            changes={"queued_at": 30, "not_before": 50},
        )
    )
    candidates = [Candidate("node", None)]
    assert await jobs.claim_fairly(Service("s"), candidates, 9, now) == []
    assert await jobs.queued_services() == ["s"]
    assert await jobs.release_delayed(now) == released
    assert len(await jobs.claim_fairly(Service("s"), candidates, 9, now)) == released


async def test_a_place_in_the_queue_counts_the_users_older_jobs_that_may_be_sent(
    jobs: SqlJobs,
) -> None:
    first, *_, last = await added(jobs, "ann", "bob", "ann", "ann")
    await jobs.insert(new(service="t"), "queued")
    assert await jobs.queued_before([first.id, last.id], 9) == {first.id: 0, last.id: 2}
    sent = await moved(jobs, claim(first))
    assert await jobs.queued_before([last.id], 9) == {last.id: 1}
    delay = {"queued_at": 30, "not_before": 50}
    await jobs.move(Move(sent.id, 1, JobState.PROCESSING, JobState.QUEUED, 30, "", changes=delay))
    assert await jobs.queued_before([last.id], 9) == {last.id: 1}


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


async def test_of_fifty_at_once_as_many_are_taken_as_may_be_uploaded_in_a_day(
    jobs: SqlJobs,
) -> None:
    size = new().bundle.size
    ends = await asyncio.gather(
        *(jobs.insert(new(), "queued", 0, 0, None, 3 * size) for _ in range(50)),
        *(jobs.insert(new("bob"), "queued", 0, 0, None, size) for _ in range(2)),
        return_exceptions=True,
    )
    assert [type(end) is tuple for end in ends].count(True) == 3 + 1
    assert {type(end) for end in ends} == {tuple, DayUsed}
    at = new().created_at
    assert (await jobs.uploaded("ann", at), await jobs.uploaded("bob", at)) == (3 * size, size)
    tomorrow = dataclasses.replace(new(), created_at=at + DAY)
    await jobs.insert(tomorrow, "queued", 0, 0, None, size)
    assert await jobs.uploaded("ann", at + DAY) == size
    await jobs.forget_uploaded(at + DAY)
    assert await jobs.uploaded("ann", at) == 0
    assert await jobs.uploaded("ann", at + DAY) == size


async def test_results_count_as_stored_until_the_job_is_cleaned(jobs: SqlJobs) -> None:
    (job,) = await added(jobs, "ann")
    job = await moved(jobs, claim(job))
    assert not await jobs.attach_result(job.key, Result("r", 5, "00"))  # it is under way
    assert await jobs.move(
        Move(job.id, 1, JobState.PROCESSING, JobState.CANCELLED, 20, "", changes={"ended_at": 20})
    )
    assert await jobs.attach_result(job.key, Result("r", 5, "00"))
    assert await jobs.stored("ann") == new().bundle.size + 5
    assert (await jobs.get(job.id)).result == Result("r", 5, "00")
    await jobs.clean([Move(job.id, 1, JobState.CANCELLED, JobState.CLEANED, 30, "")])
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
    named = HELD.removeprefix("deferred = 0 AND state IN").split(",")
    assert {word.strip(" '()") for word in named} == {state.value for state in states.HOLDS_SLOT}


async def test_warnings_of_the_upload_outlast_those_of_attempts(jobs: SqlJobs) -> None:
    job, _ = await jobs.insert(new(warnings=("a name",)), "queued")
    job = await moved(jobs, claim(job))
    changes = {"warnings": ["of an attempt"]}
    assert await jobs.move(
        Move(job.id, 1, JobState.PROCESSING, JobState.QUEUED, 30, "back", changes=changes)
    )
    document = documents.job_doc(await jobs.get(job.id), None)
    assert document.warnings == ["a name", "of an attempt"]
