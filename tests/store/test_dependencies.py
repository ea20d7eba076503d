"""Jobs that wait for other jobs."""

import pytest

from server.domain import ending
from server.domain.choose import Candidate
from server.domain.errors import BadField, StillNeeded
from server.domain.jobs import Hold, Job
from server.domain.service import Service
from server.maintenance import backup
from shared.wire import JobState, Reason
from tests.kit.store import Store, claim, service

S = JobState
SERVICE = Service("s", expires_after_s=60.0)


async def run(jobs: Store, job: Job, to: JobState = S.COMPLETED, at: int = 100) -> Job:
    if to is S.CANCELLED:
        return await jobs.moved(ending.end(await jobs.get(job.id), SERVICE, at, to, "cancelled"))
    await jobs.moved(claim(await jobs.get(job.id)))
    return await finish(jobs, job, to, at)


async def finish(jobs: Store, job: Job, to: JobState = S.COMPLETED, at: int = 100) -> Job:
    job = await jobs.get(job.id)
    for state in (S.SUBMITTED, S.RUNNING):
        job = await jobs.to(job, state)
    reason = Reason.EXIT_CODE if to is S.FAILED else None
    return await jobs.moved(ending.end(job, SERVICE, at, to, f"it {to}", reason))


async def claimable(jobs: Store) -> list[int]:
    """Takes them."""
    found = await jobs.claim_fairly(service(), [Candidate("node", 100)], 100, 200)
    return sorted(job.id for job in found)


async def fail_broken(jobs: Store) -> list[Job]:
    """What the stage does, until there is nothing left to do."""
    failed: list[Job] = []
    while broken := await jobs.broken_dependencies():
        failed += [await jobs.moved(ending.dependency_failed(one, SERVICE, 300)) for one in broken]
    return failed


async def test_time_that_it_waits_for_others_is_no_time_in_the_queue(jobs: Store) -> None:
    first = await jobs.upload()
    second = await jobs.upload(after=(first.id,))
    later = await jobs.upload(after=(first.id,), not_before=5_000)
    assert [job.id for job in await jobs.overdue("s", 10, 10, 10)] == [first.id]
    await run(jobs, first, at=100)
    assert [job.id for job in await jobs.overdue("s", 99, 99, 10)] == []
    assert [job.id for job in await jobs.overdue("s", 100, 100, 10)] == [second.id]
    released = await jobs.get(later.id)
    assert (released.hold, released.waits_since, released.not_before) == (None, 5_000, 5_000)


async def test_a_job_that_is_retried_waits_again_for_what_is_not_complete(jobs: Store) -> None:
    first, other = await jobs.upload(), await jobs.upload()
    second = await jobs.upload(after=(first.id, other.id))
    await run(jobs, other)
    await run(jobs, first, S.FAILED)
    (failed,) = await fail_broken(jobs)
    again = await _retried(jobs, failed)
    assert again.hold is Hold.DEPENDENCY, "the other has still failed"
    (failed,) = await fail_broken(jobs)
    await _retried(jobs, await jobs.get(first.id))
    assert (await jobs.get(second.id)).state is S.FAILED, "a retry of the other revives nothing"
    again = await _retried(jobs, failed)
    assert (again.hold, await jobs.unmet(second.id)) == (Hold.DEPENDENCY, [first.id])
    assert await fail_broken(jobs) == []
    await run(jobs, first)
    assert await claimable(jobs) == [second.id]
    third = await jobs.upload(after=(other.id,))
    cancelled = await run(jobs, third, S.CANCELLED)
    assert (await _retried(jobs, cancelled)).hold is None, "all have completed"
    assert await claimable(jobs) == [third.id]


async def _retried(jobs: Store, job: Job) -> Job:
    changes = {"ended_at": None, "expires_at": None, "reason": None}
    return await jobs.to(job, S.QUEUED, 400, changes=changes)


async def test_a_result_that_is_needed_is_not_cleaned(jobs: Store) -> None:
    first = await jobs.upload()
    ended = await run(jobs, first)
    second = await jobs.upload(inputs_from=(first.id,))
    long_after = 10**12
    assert await jobs.expired(long_after, 10) == []
    assert (await jobs.clean([ended], long_after))[0] == 0
    await run(jobs, second)
    assert {job.id for job in await jobs.expired(long_after, 10)} == {1, 2}
    assert (await jobs.clean([ended], long_after))[0] == 1


async def test_a_cleaned_job_has_completed_all_the_same(jobs: Store) -> None:
    completed, failed = await jobs.upload(), await jobs.upload()
    for job, to in ((completed, S.COMPLETED), (failed, S.FAILED)):
        ended = await run(jobs, job, to)
        assert (await jobs.clean([ended], 10**12))[0] == 1
    assert (await jobs.upload(after=(completed.id,))).hold is None
    with pytest.raises(BadField, match="the result of job 1 is gone, it has expired"):
        await jobs.upload(inputs_from=(completed.id,))
    broken = await jobs.upload(after=(failed.id,))
    (ended,) = await fail_broken(jobs)
    assert (ended.id, ended.message) == (broken.id, "job 2, which it waits for, did not complete")
    forgotten = await jobs.forget("s", 10**12, 10)
    assert forgotten == 1, "job 1 stays: one that has not ended is after it"


async def test_a_job_that_another_waits_for_is_not_forgotten_and_not_cancelled(jobs: Store) -> None:
    first = await jobs.upload()
    second = await jobs.upload(after=(first.id,))
    with pytest.raises(StillNeeded):
        await jobs.request_forget(first.id, 50, "ann")
    assert (await jobs.get(first.id)).cancel_requested_at is None
    await jobs.request_forget(second.id, 50, "ann")
    asked = await jobs.get(second.id)
    assert (asked.cancel_requested_at, asked.delete_requested_at) == (50, 50)
    with pytest.raises(BadField, match="job 2 does not exist"):
        await jobs.upload(after=(second.id,))
    over = await run(jobs, await jobs.upload(), S.CANCELLED)
    over, _ = await jobs.request_forget(over.id, 60, "ann")
    assert over.delete_requested_at is None, "it is deleted at once, and not by the Cleaner"


async def test_what_waits_for_a_job_that_a_backup_left_out_fails(jobs: Store, tmp_path) -> None:
    first = await jobs.upload()
    second = await jobs.upload(after=(first.id,))
    await jobs.database.run(lambda connection: backup.leave_out(connection, [first.id]))
    assert [job.id for job in await fail_broken(jobs)] == [second.id]
    assert (await jobs.get(second.id)).message == "job 1, which it waits for, was deleted"


async def test_a_child_is_not_waited_for_without_its_parent(jobs: Store) -> None:
    await jobs.upload()
    child = await jobs.upload()
    await jobs.sql("UPDATE jobs SET parent_id = 1 WHERE id = 2")
    with pytest.raises(BadField, match="job 2 is a child of job 1: name that"):
        await jobs.upload(after=(child.id,))
