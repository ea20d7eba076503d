"""Jobs that wait for other jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.domain import batch as rules
from server.domain import ending
from server.domain.choose import Candidate
from server.domain.errors import BadField, StillNeeded
from server.domain.jobs import BatchRequest, Hold, Job, Move
from server.domain.service import Service
from server.store.jobs import SqlJobs
from shared.sqlite.database import Database
from shared.wire import JobState, Reason
from tests.contract.store.conftest import claim, new
from tests.kit.jobs import moved

S = JobState
SERVICE = Service("s", expires_after_s=60.0)


@pytest.fixture
def upload(jobs: SqlJobs) -> Callable[..., Any]:
    async def upload(**fields: Any) -> Job:
        return (await jobs.insert(new(**fields), "queued"))[0]

    return upload


async def run(jobs: SqlJobs, job: Job, to: JobState = S.COMPLETED, at: int = 100) -> Job:
    """Bring a queued job to an end."""
    if to is S.CANCELLED:
        return await moved(jobs, ending.cancelled(await jobs.get(job.id), SERVICE, at, "cancelled"))
    job = await moved(jobs, claim(await jobs.get(job.id)))
    for state in (S.SUBMITTED, S.RUNNING):
        job = await moved(jobs, Move(job.id, job.attempt, job.state, state, 30, "on"))
    reason = Reason.EXIT_CODE if to is S.FAILED else None
    return await moved(jobs, ending.end(job, to, SERVICE, at, f"it {to}", reason))


async def claimable(jobs: SqlJobs) -> list[int]:
    """Takes them."""
    service = Service("s", runs_per_user=100, max_runs=100)
    found = await jobs.claim_fairly(service, [Candidate("node", 100)], 100, 200)
    return sorted(job.id for job in found)


async def fail_broken(jobs: SqlJobs, at: int = 300) -> list[Job]:
    """What the stage does, until there is nothing left to do."""
    failed: list[Job] = []
    while broken := await jobs.broken_dependencies():
        failed += [await moved(jobs, ending.dependency_failed(one, SERVICE, at)) for one in broken]
    return failed


async def test_a_job_starts_when_the_last_one_that_it_waits_for_completes(
    jobs: SqlJobs, upload: Any
) -> None:
    first, second = await upload(), await upload()
    third = await upload(after=(first.id,), inputs_from=(second.id,))
    assert (third.hold, third.after, third.inputs_from) == (Hold.DEPENDENCY, (1,), (2,))
    assert await jobs.unmet(third.id) == [1, 2]
    assert await jobs.waiting_for(first.id) == [3]
    await run(jobs, second, at=100)
    assert await jobs.unmet(third.id) == [1]
    assert (await jobs.get(third.id)).hold is Hold.DEPENDENCY
    await run(jobs, first, at=150)
    assert await jobs.unmet(third.id) == []
    released = await jobs.get(third.id)
    assert (released.hold, released.waits_since) == (None, 150)
    assert await claimable(jobs) == [3]


async def test_a_job_that_waits_is_not_claimed(jobs: SqlJobs, upload: Any) -> None:
    first = await upload()
    await upload(after=(first.id,))
    assert await claimable(jobs) == [1]


async def test_time_that_it_waits_for_others_is_no_time_in_the_queue(
    jobs: SqlJobs, upload: Any
) -> None:
    first = await upload()
    await upload(after=(first.id,))
    assert [job.id for job in await jobs.overdue("s", 10, 10, 10)] == [1]
    await run(jobs, first, at=100)
    assert [job.id for job in await jobs.overdue("s", 99, 99, 10)] == []
    assert [job.id for job in await jobs.overdue("s", 100, 100, 10)] == [2]


async def test_a_time_to_start_holds_on(jobs: SqlJobs, upload: Any) -> None:
    first = await upload()
    second = await upload(after=(first.id,), not_before=5_000)
    await run(jobs, first)
    released = await jobs.get(second.id)
    assert (released.hold, released.waits_since, released.not_before) == (None, 5_000, 5_000)


async def test_what_has_completed_already_is_not_waited_for(jobs: SqlJobs, upload: Any) -> None:
    first = await upload()
    await run(jobs, first)
    second = await upload(after=(first.id,), inputs_from=(first.id,))
    assert second.hold is None
    assert await claimable(jobs) == [second.id]


@pytest.mark.parametrize("how", [S.FAILED, S.CANCELLED])
@pytest.mark.parametrize("before", [True, False])
async def test_a_job_fails_when_one_that_it_waits_for_does_not_complete(
    jobs: SqlJobs, upload: Any, how: JobState, before: bool
) -> None:
    first = await upload()
    if before:
        await run(jobs, first, how)
    second = await upload(after=(first.id,))
    third = await upload(inputs_from=(second.id,))
    if not before:
        await run(jobs, first, how)
    assert [job.id for job in await fail_broken(jobs)] == [second.id, third.id]
    failed = await jobs.get(second.id)
    assert (failed.state, failed.reason) == (S.FAILED, Reason.DEPENDENCY_FAILED)
    became = "was cancelled" if how is S.CANCELLED else "failed (exit_code): it Failed"
    assert failed.message == f"job 1, which it waits for, {became}"
    assert (await jobs.get(third.id)).message.startswith(
        "job 2, which it waits for, failed (dependency_failed): job 1, which it waits for"
    )
    assert [event.state for event in await jobs.events(second.id)] == [S.QUEUED, S.FAILED]


async def test_a_retry_of_the_other_does_not_revive_a_job(jobs: SqlJobs, upload: Any) -> None:
    first = await upload()
    second = await upload(after=(first.id,))
    ended = await run(jobs, first, S.FAILED)
    await _retried(jobs, ended)
    await fail_broken(jobs)
    await run(jobs, first)
    assert (await jobs.get(second.id)).state is S.FAILED


async def test_a_job_that_is_retried_waits_again_for_what_is_not_complete(
    jobs: SqlJobs, upload: Any
) -> None:
    first, other = await upload(), await upload()
    second = await upload(after=(first.id, other.id))
    await run(jobs, other)
    await run(jobs, first, S.FAILED)
    (failed,) = await fail_broken(jobs)
    again = await _retried(jobs, failed)
    assert again.hold is Hold.DEPENDENCY, "the other has still failed"
    (failed,) = await fail_broken(jobs)
    await _retried(jobs, await jobs.get(first.id))
    again = await _retried(jobs, failed)
    assert (again.hold, await jobs.unmet(second.id)) == (Hold.DEPENDENCY, [first.id])
    assert await fail_broken(jobs) == []
    await run(jobs, first)
    assert await claimable(jobs) == [second.id]


async def test_a_job_that_is_retried_after_all_have_completed_starts(
    jobs: SqlJobs, upload: Any
) -> None:
    first = await upload()
    second = await upload(after=(first.id,))
    cancelled = await run(jobs, second, S.CANCELLED)
    await run(jobs, first)
    assert (await _retried(jobs, cancelled)).hold is None
    assert await claimable(jobs) == [second.id]


async def _retried(jobs: SqlJobs, job: Job) -> Job:
    changes = {"ended_at": None, "expires_at": None, "reason": None}
    return await moved(
        jobs, Move(job.id, job.attempt, job.state, S.QUEUED, 400, "again", changes=changes)
    )


@pytest.mark.parametrize("field", ["after", "inputs_from"])
async def test_what_is_not_there_or_anothers_is_refused_in_the_same_words(
    jobs: SqlJobs, upload: Any, field: str
) -> None:
    await upload(user="bob")
    for job_id in (1, 99):
        with pytest.raises(BadField) as refused:
            await upload(**{field: (job_id,)})
        assert (refused.value.field, refused.value.code) == (field, f"invalid_{field}")
        assert str(refused.value) == f"Invalid {field}: job {job_id} does not exist"
    assert len(await jobs.queued_services()) == 1
    with pytest.raises(Exception, match="not found"):
        await jobs.get(2)


async def test_a_result_that_is_needed_is_not_cleaned(jobs: SqlJobs, upload: Any) -> None:
    first = await upload()
    ended = await run(jobs, first)
    second = await upload(inputs_from=(first.id,))
    long_after = 10**12
    assert await jobs.expired(long_after, 10) == []
    assert (await jobs.clean([ending.expired(ended, long_after)]))[0] == 0
    await run(jobs, second)
    assert {job.id for job in await jobs.expired(long_after, 10)} == {1, 2}
    assert (await jobs.clean([ending.expired(ended, long_after)]))[0] == 1


async def test_a_cleaned_job_has_completed_all_the_same(jobs: SqlJobs, upload: Any) -> None:
    completed, failed = await upload(), await upload()
    for job, to in ((completed, S.COMPLETED), (failed, S.FAILED)):
        ended = await run(jobs, job, to)
        assert (await jobs.clean([ending.expired(ended, 10**12)]))[0] == 1
    assert (await upload(after=(completed.id,))).hold is None
    with pytest.raises(BadField, match="the result of job 1 is gone, it has expired"):
        await upload(inputs_from=(completed.id,))
    broken = await upload(after=(failed.id,))
    (ended,) = await fail_broken(jobs)
    assert (ended.id, ended.message) == (broken.id, "job 2, which it waits for, did not complete")


async def test_what_is_waited_for_is_neither_deleted_nor_forgotten(
    jobs: SqlJobs, database: Database, upload: Any
) -> None:
    first, other = await upload(), await upload()
    second = await upload(after=(first.id, other.id))
    ended = await run(jobs, first)
    assert (await jobs.clean([ending.expired(ended, 10**12)]))[0] == 1
    assert await jobs.forget("s", 10**12, 10) == 0
    with pytest.raises(StillNeeded, match="job 1 is still needed: job 3 waits for it"):
        await jobs.delete(first.id)
    await run(jobs, second, S.CANCELLED)
    await jobs.delete(first.id)
    assert (await jobs.get(second.id)).after == (first.id, other.id)
    await jobs.delete(second.id)
    assert await database.rows("SELECT * FROM dependencies") == []


async def test_what_no_move_has_settled_is_repaired(
    jobs: SqlJobs, database: Database, upload: Any
) -> None:
    first, other, gone = await upload(), await upload(), await upload()
    second = await upload(after=(first.id,))
    third = await upload(after=(other.id,))
    fourth = await upload(after=(gone.id,))
    await run(jobs, first)
    await run(jobs, other, S.CANCELLED)
    await database.write(lambda tx: tx.rows("UPDATE dependencies SET state = 'waiting'"))
    await database.write(
        lambda tx: tx.rows("UPDATE jobs SET hold = 'dependency' WHERE id = :id", {"id": second.id})
    )
    await database.write(lambda tx: tx.rows("DELETE FROM events WHERE job_id = 3"))
    await database.write(lambda tx: tx.rows("DELETE FROM jobs WHERE id = 3"))
    assert await jobs.repair_dependencies(500) == 3
    assert await jobs.repair_dependencies(500) == 0
    assert [job.id for job in await fail_broken(jobs)] == [third.id, fourth.id]
    assert (await jobs.get(fourth.id)).message == "job 3, which it waits for, was deleted"
    assert await claimable(jobs) == [second.id]


async def test_a_repeat_under_the_same_key_adds_no_dependencies(jobs: SqlJobs, upload: Any) -> None:
    first = await upload()
    second = await upload(after=(first.id,), idempotency_key="k")
    again = await upload(after=(first.id,), idempotency_key="k")
    assert again.id == second.id


async def test_a_child_is_not_waited_for_without_its_parent(
    jobs: SqlJobs, database: Database, upload: Any
) -> None:
    await upload()
    child = await upload()
    await database.write(lambda tx: tx.rows("UPDATE jobs SET parent_id = 1 WHERE id = 2"))
    with pytest.raises(BadField, match="job 2 is a child of job 1: name that"):
        await upload(after=(child.id,))


async def test_the_children_of_an_array_get_what_their_parent_was_to_get(
    jobs: SqlJobs, upload: Any
) -> None:
    first = await upload()
    parent = await upload(inputs_from=(first.id,), batch=BatchRequest(((0, 1, 1),)))
    assert await jobs.due_batches(["s"], 10) == []
    await run(jobs, first)
    ((ready, batch),) = await jobs.due_batches(["s"], 10)
    assert ready.id == parent.id
    begun = await jobs.begin_batch(rules.begun(ready, batch, 150))
    assert begun is not None
    assert await jobs.make_children(batch, rules.tasks(batch, 0, 2), 160, "made")
    children = [await jobs.get(parent.id + number) for number in (1, 2)]
    assert {child.inputs_from for child in children} == {(first.id,)}
    assert await jobs.expired(10**12, 10) == [], "the result is needed until the parent ends"
