"""Which files jobs have: shared bundles and results are counted, and let go with the last one."""

import asyncio
from dataclasses import replace

import pytest

from server.domain.errors import BundleGone, Conflict
from server.domain.jobs import Bundle, FileKind, Job, Move
from shared.wire import JobState
from tests.kit.store import Store, clean, end, result

B, R = FileKind.BUNDLE, FileKind.RESULT


async def uploaded(jobs: Store, file: str, digest: str = "d", size: int = 5) -> Job:
    return await jobs.upload(bundle=Bundle(file, size, digest))


async def cancelled(jobs: Store, *found: Job) -> list[Move]:
    """How each is cleaned."""
    return [clean(await jobs.moved(end(job, JobState.CANCELLED))) for job in found]


def file_of(job: Job) -> str:
    assert job.bundle is not None
    return job.bundle.file


async def test_the_same_content_is_stored_once(jobs: Store) -> None:
    same = [await uploaded(jobs, "a"), await uploaded(jobs, "b")]
    others = [await uploaded(jobs, "c", digest="e"), await uploaded(jobs, "d", size=6)]
    assert [file_of(job) for job in (*same, *others)] == ["a", "a", "c", "d"]
    orphans = [f"orphan{number}" for number in range(1_200)]
    assert await jobs.files_in_use([*orphans, "a", "b", "c", "d"]) == {"a", "c", "d"}
    assert await jobs.stored("ann") == 3 * 5 + 6  # to its user each one counts


async def test_a_bundle_whose_archive_said_what_is_executable_is_stored_by_itself(jobs):
    own = Bundle("b", 5, "d", own_modes=True)
    for before, after in (("a", "c"), ("e", "f")):
        shared = await uploaded(jobs, before)
        job = await jobs.upload(bundle=replace(own, file=f"b{before}"))
        again = await uploaded(jobs, after)
        assert job.bundle == replace(own, file=f"b{before}")
        assert shared.bundle == again.bundle == Bundle("a", 5, "d")


async def test_a_shared_file_goes_with_the_last_job_that_has_it(jobs: Store) -> None:
    found = [await uploaded(jobs, name) for name in "abcd"]
    moves = await cancelled(jobs, *found)
    assert await jobs.clean(moves[:2]) == (2, [])
    assert await jobs.delete(found[2].id) == []
    assert await jobs.files_in_use(["a"]) == {"a"}
    assert await jobs.clean(moves[3:]) == (1, [(B, "a")])
    assert await jobs.files_in_use(["a"]) == set()
    assert (await uploaded(jobs, "e")).bundle == Bundle("e", 5, "d")


async def test_who_refers_to_a_file_that_is_let_go_has_one_of_its_own(jobs: Store) -> None:
    """Uploads and the Cleaner beside each other: nobody has a file that was removed."""
    for number in range(20):
        moves = await cancelled(jobs, await uploaded(jobs, f"old{number}"))
        job, (cleaned, gone) = await asyncio.gather(
            uploaded(jobs, f"new{number}"), jobs.clean(moves)
        )
        assert cleaned == 1
        assert (B, file_of(job)) not in gone
        await jobs.clean(await cancelled(jobs, job))


async def test_damaged_bytes_are_shared_no_more(jobs: Store) -> None:
    first = await uploaded(jobs, "a")
    assert first.bundle is not None
    await jobs.stop_sharing(first.bundle.file)
    assert [file_of(await uploaded(jobs, name)) for name in "bc"] == ["b", "b"]
    assert await jobs.clean(await cancelled(jobs, first)) == (1, [(B, "a")])


async def test_a_bundle_without_a_file_of_its_own_shares_one_or_is_refused(jobs: Store) -> None:
    assert not await jobs.can_share_bundle("d", 5)
    with pytest.raises(BundleGone):
        await uploaded(jobs, "")
    first = await uploaded(jobs, "a")
    assert await jobs.can_share_bundle("d", 5)
    second = await uploaded(jobs, "")
    assert second.bundle == Bundle("a", 5, "d")
    with pytest.raises(BundleGone):
        await uploaded(jobs, "", digest="another")
    assert await jobs.clean(await cancelled(jobs, first)) == (1, [])
    assert await jobs.clean(await cancelled(jobs, second)) == (1, [(B, "a")])
    assert not await jobs.can_share_bundle("d", 5)
    with pytest.raises(BundleGone):
        await uploaded(jobs, "")


async def test_the_files_of_all_attempts_go_with_their_job(jobs: Store) -> None:
    job = await jobs.to(await jobs.claimed(), JobState.SUBMITTED)
    facts = {"result": result("r1")}
    back = await jobs.to(job, JobState.QUEUED, changes={"agent": None}, facts=facts)
    sent = await jobs.to(back, JobState.PROCESSING, changes={"agent": "node"})
    over = await jobs.moved(end(sent, JobState.FAILED, result=result("r2", 4)))
    assert await jobs.stored("ann") == 1 + 3 + 4
    assert await jobs.files_in_use(["r1", "r2", "r3"]) == {"r1", "r2"}
    other = await jobs.moved(end(await jobs.claimed(user="bob"), JobState.FAILED))
    assert await jobs.attach_result(other.key, result("r4", 5))
    assert await jobs.stored("bob") == 1 + 5
    jobs.changed.clear()
    assert await jobs.clean([clean(other)]) == (1, [(R, "r4")])
    assert [one.state for one in jobs.changed] == [JobState.CLEANED]
    assert await jobs.stored("bob") == 0
    (attempt,) = await jobs.attempts(other.id)
    assert (attempt.state, attempt.result) == (JobState.FAILED, None)
    assert not await jobs.attach_result(other.key, result("late"))
    assert await jobs.delete(over.id) == [(B, "b"), (R, "r1"), (R, "r2")]
    assert await jobs.attempts(job.id) == []


async def test_a_job_that_has_not_ended_is_not_deleted(jobs: Store) -> None:
    job = await jobs.claimed()
    with pytest.raises(Conflict, match="cancel it before"):
        await jobs.delete(job.id)
    assert (await jobs.get(job.id)).state is JobState.PROCESSING
