"""What every store must remember of attempts."""

from __future__ import annotations

import pytest

from server.domain.errors import NoSuchAttempt
from server.domain.jobs import Job, Move, Result, Step
from server.store.jobs import SqlJobs
from shared.ids import AttemptKey
from shared.wire import JobState, Limits, Reason, Usage
from tests.contract.store.conftest import claim, new
from tests.kit.jobs import moved

FACTS = {
    "exit_code": 3,
    "stderr_tail": "the last lines",
    "usage": Usage(wall_s=61.0, cpu_s=2.5, peak_memory_bytes=7),
    "warnings": ["one"],
    "enforcement": {"memory": "hard"},
}
BACK = {"agent": None, "payload_id": None, "submitted_at": None, "started_at": None}


async def claimed(jobs: SqlJobs, agent: str = "node") -> Job:
    job, _ = await jobs.insert(new(limits=Limits(cpus=2)), "queued")
    return await moved(jobs, claim(job, agent))


async def test_a_claim_begins_an_attempt(jobs: SqlJobs) -> None:
    job = await claimed(jobs)
    (attempt,) = await jobs.attempts(job.id)
    assert (attempt.job_id, attempt.number, attempt.state) == (job.id, 1, JobState.PROCESSING)
    assert (attempt.agent, attempt.claimed_at, attempt.limits.cpus) == ("node", 20, 2)
    assert attempt.ended_at is None


async def test_an_attempt_that_no_agent_took_leaves_none(jobs: SqlJobs) -> None:
    job = await claimed(jobs)
    back = await jobs.move(Move(job.id, 1, job.state, JobState.QUEUED, 30, "busy", changes=BACK))
    assert await jobs.attempts(job.id) == []
    assert back is not None
    await jobs.move(claim(back, "south"))
    assert [(one.number, one.agent) for one in await jobs.attempts(job.id)] == [(2, "south")]
    with pytest.raises(NoSuchAttempt):
        await jobs.attempt(job.key)


async def test_what_an_attempt_left_is_kept_when_another_one_follows(jobs: SqlJobs) -> None:
    job = await claimed(jobs)
    taken = {"payload_id": 5, "submitted_at": 30}
    await jobs.move(Move(job.id, 1, job.state, JobState.SUBMITTED, 30, "has it", changes=taken))
    facts = FACTS | {"result": Result("r1", 3, "ab"), "started_at": 31}
    again = Move(
        job.id,
        1,
        JobState.SUBMITTED,
        JobState.QUEUED,
        40,
        "failed; it will be tried again",
        Reason.EXIT_CODE,
        changes=BACK,
        facts=facts,
        through=(Step(JobState.RUNNING, 31, "run.sh started"),),
    )
    back = await jobs.move(again)
    assert back is not None
    assert (back.exit_code, back.result, back.agent) == (None, None, None)
    second = await moved(jobs, claim(back, "south"))
    first = await jobs.attempt(AttemptKey(job.id, 1))
    assert (first.state, first.reason) == (JobState.FAILED, Reason.EXIT_CODE)
    times = (first.claimed_at, first.submitted_at, first.started_at, first.ended_at)
    assert times == (20, 30, 31, 40)
    assert (first.agent, first.payload_id, first.result) == ("node", 5, Result("r1", 3, "ab"))
    assert {name: getattr(first, name) for name in FACTS} == FACTS | {"warnings": ("one",)}
    end = Move(
        job.id,
        2,
        second.state,
        JobState.COMPLETED,
        60,
        "done",
        changes={"ended_at": 60, "expires_at": 99},
        facts=FACTS | {"exit_code": 0, "result": Result("r2", 4, "cd")},
        through=(Step(JobState.SUBMITTED, 50, "south has it"),),
    )
    done = await jobs.move(end)
    assert done is not None
    assert (done.exit_code, done.usage, done.result) == (0, FACTS["usage"], Result("r2", 4, "cd"))
    one, two = await jobs.attempts(job.id)
    assert (one, two.state, two.result) == (first, JobState.COMPLETED, Result("r2", 4, "cd"))
    assert await jobs.stored("ann") == job.bundle.size + 3 + 4 if job.bundle else False
    assert await jobs.files_in_use(["r1", "r2", "r3"]) == {"r1", "r2"}
    assert await jobs.delete(job.id) == [
        ("bundles", "b"),
        ("results", "r1"),
        ("results", "r2"),
    ]
    assert await jobs.attempts(job.id) == []


async def test_a_result_that_comes_late_is_its_attempts_and_no_others(jobs: SqlJobs) -> None:
    job = await claimed(jobs)
    lost = Move(job.id, 1, job.state, JobState.QUEUED, 30, "gone", Reason.AGENT_LOST, changes=BACK)
    back = await jobs.move(lost)
    assert back is not None
    second = await moved(jobs, claim(back))
    assert await jobs.attach_result(AttemptKey(job.id, 1), Result("r1", 3, "ab"))
    assert not await jobs.attach_result(AttemptKey(job.id, 1), Result("other", 3, "ab"))
    assert not await jobs.attach_result(second.key, Result("r2", 3, "ab"))  # it is under way
    assert not await jobs.attach_result(AttemptKey(job.id, 3), Result("r3", 3, "ab"))
    assert (await jobs.get(job.id)).result is None
    found = {one.number: one.result for one in await jobs.attempts(job.id)}
    assert found == {1: Result("r1", 3, "ab"), 2: None}


async def test_an_attempt_that_was_given_up_and_is_back_is_the_one_that_ended(
    jobs: SqlJobs,
) -> None:
    job = await claimed(jobs)
    await jobs.move(Move(job.id, 1, job.state, JobState.QUEUED, 30, "not sent", changes=BACK))
    steps = (JobState.PROCESSING, JobState.SUBMITTED)
    back = Move(
        job.id,
        1,
        JobState.QUEUED,
        JobState.COMPLETED,
        40,
        "done after all",
        changes={"agent": "node", "payload_id": 5, "ended_at": 40, "expires_at": 99},
        facts={"result": Result("r1", 3, "ab"), "agent": "node", "payload_id": 5},
        through=tuple(Step(state, 40, "it is back") for state in steps),
    )
    assert await jobs.move(back) is not None
    (attempt,) = await jobs.attempts(job.id)
    assert (attempt.number, attempt.state, attempt.payload_id) == (1, JobState.COMPLETED, 5)
    assert attempt.result == Result("r1", 3, "ab")


async def test_files_of_cleaned_jobs_are_nobodys(jobs: SqlJobs) -> None:
    job = await claimed(jobs)
    ended = {"ended_at": 30, "expires_at": 30}
    end = Move(
        job.id,
        1,
        job.state,
        JobState.FAILED,
        30,
        "no",
        Reason.AGENT_ERROR,
        changes=ended,
        facts={"result": Result("r1", 3, "ab")},
    )
    assert await jobs.move(end)
    cleaned, files = await jobs.clean([Move(job.id, 1, JobState.FAILED, JobState.CLEANED, 40, "")])
    assert (cleaned, files) == (1, [("bundles", "b"), ("results", "r1")])
    (attempt,) = await jobs.attempts(job.id)
    assert (attempt.state, attempt.result) == (JobState.FAILED, None)
    assert not await jobs.attach_result(job.key, Result("late", 3, "ab"))


async def test_a_file_with_several_results_goes_with_the_last_job_that_has_one(
    jobs: SqlJobs,
) -> None:
    ended = []
    for number in range(3):
        job = await claimed(jobs)
        lost = Move(
            job.id, 1, job.state, JobState.FAILED, 30, "gone", changes={"ended_at": 30}, facts={}
        )
        ended.append(await moved(jobs, lost))
        result = Result("shared", 3, f"a{number}", offset=3 * number)
        assert await jobs.attach_result(job.key, result)
        assert (await jobs.attempt(job.key)).result == result
        assert (await jobs.get(job.id)).result == result
    clean = [Move(job.id, 1, job.state, JobState.CLEANED, 40, "") for job in ended]
    assert ("results", "shared") not in (await jobs.clean(clean[:1]))[1]
    assert ("results", "shared") not in await jobs.delete(ended[1].id)
    assert await jobs.files_in_use(["shared"]) == {"shared"}
    assert ("results", "shared") in (await jobs.clean(clean[2:]))[1]
    assert await jobs.files_in_use(["shared"]) == set()
