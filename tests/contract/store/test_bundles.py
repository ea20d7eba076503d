"""What every store must count of stored bundles."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from server.domain.errors import BundleGone
from server.domain.jobs import Bundle, FileKind, Job, Move
from server.store.jobs import SqlJobs
from shared.wire import JobState
from tests.contract.store.conftest import new


async def uploaded(jobs: SqlJobs, file: str, digest: str = "d", size: int = 5) -> Job:
    job, _ = await jobs.insert(new(bundle=Bundle(file, size, digest)), "queued")
    return job


async def cancelled(jobs: SqlJobs, *found: Job) -> list[Move]:
    for job in found:
        end = {"ended_at": 20, "expires_at": 20}
        await jobs.move(Move(job.id, 0, JobState.QUEUED, JobState.CANCELLED, 20, "", changes=end))
    return [Move(job.id, 0, JobState.CANCELLED, JobState.CLEANED, 30, "") for job in found]


async def test_the_same_content_is_stored_once(jobs: SqlJobs) -> None:
    first, same = await uploaded(jobs, "a"), await uploaded(jobs, "b")
    others = await uploaded(jobs, "c", digest="e"), await uploaded(jobs, "d", size=6)
    files = [job.bundle.file if job.bundle else "" for job in (first, same, *others)]
    assert files == ["a", "a", "c", "d"]
    assert await jobs.files_in_use(["a", "b", "c", "d"]) == {"a", "c", "d"}
    assert await jobs.stored("ann") == 3 * 5 + 6  # to its user each one counts


async def test_a_bundle_whose_archive_said_what_is_executable_is_stored_by_itself(
    jobs: SqlJobs,
) -> None:
    own = Bundle("b", 5, "d", own_modes=True)
    for before, after in (("a", "c"), ("e", "f")):
        shared = await uploaded(jobs, before)
        job, _ = await jobs.insert(new(bundle=replace(own, file=f"b{before}")), "queued")
        again = await uploaded(jobs, after)
        assert job.bundle == replace(own, file=f"b{before}")
        assert shared.bundle == again.bundle == Bundle("a", 5, "d")


async def test_a_shared_file_goes_with_the_last_job_that_has_it(jobs: SqlJobs) -> None:
    found = [await uploaded(jobs, name) for name in "abcd"]
    moves = await cancelled(jobs, *found)
    assert await jobs.clean(moves[:2]) == (2, [])
    assert await jobs.delete(found[2].id) == []
    assert await jobs.files_in_use(["a"]) == {"a"}
    assert await jobs.clean(moves[3:]) == (1, [("bundles", "a")])
    assert await jobs.files_in_use(["a"]) == set()
    again = await uploaded(jobs, "e")
    assert again.bundle == Bundle("e", 5, "d")


async def test_who_refers_to_a_file_that_is_let_go_has_one_of_its_own(jobs: SqlJobs) -> None:
    """Uploads and the Cleaner beside each other: nobody has a file that was removed."""
    for number in range(20):
        (move,) = await cancelled(jobs, await uploaded(jobs, f"old{number}", digest="d"))
        job, (cleaned, gone) = await asyncio.gather(
            uploaded(jobs, f"new{number}", digest="d"), jobs.clean([move])
        )
        assert cleaned == 1
        assert job.bundle is not None
        assert ("bundles", job.bundle.file) not in gone
        (move,) = await cancelled(jobs, job)
        await jobs.clean([move])


async def test_damaged_bytes_are_shared_no_more(jobs: SqlJobs) -> None:
    first = await uploaded(jobs, "a")
    assert first.bundle is not None
    await jobs.stop_sharing(first.bundle)
    again, third = await uploaded(jobs, "b"), await uploaded(jobs, "c")
    assert [job.bundle.file if job.bundle else "" for job in (again, third)] == ["b", "b"]
    (move,) = await cancelled(jobs, first)
    assert await jobs.clean([move]) == (1, [("bundles", "a")])


async def test_a_bundle_without_a_file_of_its_own_shares_one_or_is_refused(jobs: SqlJobs) -> None:
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
    assert await jobs.clean(await cancelled(jobs, second)) == (1, [(FileKind.BUNDLE, "a")])
    assert not await jobs.can_share_bundle("d", 5)
    with pytest.raises(BundleGone):
        await uploaded(jobs, "")
