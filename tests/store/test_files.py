"""Which files jobs have: shared bundles and results are counted, and let go with the last one."""

import asyncio

import pytest

from server.domain.errors import BundleGone, Conflict
from server.domain.jobs import Bundle, FileKind, Job
from shared.wire import JobState
from tests.kit.store import Store, end

B = FileKind.BUNDLE


async def uploaded(jobs: Store, file: str, digest: str = "d", size: int = 5) -> Job:
    return await jobs.upload(bundle=Bundle(file, size, digest))


async def cancelled(jobs: Store, *found: Job) -> list[Job]:
    """How each is cleaned."""
    return [await jobs.moved(end(job, JobState.CANCELLED)) for job in found]


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


async def test_a_shared_file_goes_with_the_last_job_that_has_it(jobs: Store) -> None:
    found = [await uploaded(jobs, name) for name in "abcd"]
    ended = await cancelled(jobs, *found)
    assert await jobs.clean(ended[:2]) == (2, [])
    assert await jobs.delete(found[2].id) == []
    assert await jobs.files_in_use(["a"]) == {"a"}
    assert await jobs.clean(ended[3:]) == (1, [(B, "a")])
    assert await jobs.files_in_use(["a"]) == set()
    assert (await uploaded(jobs, "e")).bundle == Bundle("e", 5, "d")


async def test_who_refers_to_a_file_that_is_let_go_has_one_of_its_own(jobs: Store) -> None:
    """Uploads and the Cleaner beside each other: nobody has a file that was removed."""
    for number in range(20):
        ended = await cancelled(jobs, await uploaded(jobs, f"old{number}"))
        job, (cleaned, gone) = await asyncio.gather(
            uploaded(jobs, f"new{number}"), jobs.clean(ended)
        )
        assert cleaned == 1
        assert (B, file_of(job)) not in gone
        await jobs.clean(await cancelled(jobs, job))


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


async def test_a_job_that_has_not_ended_is_not_deleted(jobs: Store) -> None:
    job = await jobs.claimed()
    with pytest.raises(Conflict, match="cancel it before"):
        await jobs.delete(job.id)
    assert (await jobs.get(job.id)).state is JobState.PROCESSING
