"""Small bundles and results are rows: written and deleted with the rows that refer to them."""

import asyncio
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from server.domain.allowances import OverQuota, Quota
from server.domain.choose import Candidate
from server.domain.jobs import ROW_BYTES, Bundle, FileKind, Result
from server.stages import merged_results
from server.storage.contents import Contents
from server.storage.folder import Storage
from server.storage.scratch import Scratch
from server.store import bundles, queue
from server.store.queue import Offer
from shared.ids import AttemptKey
from shared.wire import JobState
from tests.kit.store import Store, end, new, result, service
from tests.kit.waiting import turns
from tests.kit.warm import open_files

B, R = FileKind.BUNDLE, FileKind.RESULT
SMALL = Bundle("a", 5, "d", content=b"first")


async def rows(jobs: Store) -> dict[str, bytes]:
    return {row["name"]: row["bytes"] for row in await jobs.rows("SELECT * FROM contents")}


async def test_a_claim_brings_small_bundles_along(jobs: Store) -> None:
    same = [await jobs.upload(bundle=replace(SMALL, file=name)) for name in "ab"]
    large = await jobs.upload(bundle=Bundle("c", ROW_BYTES + 1, "e"))
    offer = Offer(service(), [Candidate("node", 9)])
    claimed = await jobs.database.write(queue.claim, [offer], 9, 20, {}, {})
    found = {job.id: job.bundle.content for job in claimed.jobs if job.bundle}
    assert found == {same[0].id: b"first", same[1].id: b"first", large.id: None}


async def test_what_is_refused_or_not_made_leaves_no_row(jobs: Store) -> None:
    job = await jobs.upload(bundle=Bundle("large", 1 << 20, "e"), idempotency_key="once")
    await jobs.insert(new(bundle=SMALL, idempotency_key="once"), "a repeat")
    with pytest.raises(OverQuota):
        await jobs.insert(new(bundle=SMALL), "one too many", Quota(queued=1))
    cancelled = await jobs.moved(end(job, JobState.CANCELLED))
    late = result("r", content=b"abc")
    assert await jobs.move(end(job, JobState.FAILED, result=late)) is None
    assert not await jobs.attach_result(AttemptKey(cancelled.id, 1), late)
    assert await rows(jobs) == {}


async def test_results_of_all_attempts_go_with_their_job(jobs: Store) -> None:
    """Rows and files alike; r1 and r4 are files."""
    sent = await jobs.to(await jobs.claimed(bundle=SMALL), JobState.SUBMITTED)
    facts = {"result": result("r1")}
    back = await jobs.to(sent, JobState.QUEUED, changes={"agent": None}, facts=facts)
    again = await jobs.to(back, JobState.PROCESSING, changes={"agent": "node"})
    over = await jobs.moved(end(again, JobState.FAILED, result=result("r2", content=b"two")))
    assert over.result == result("r2")
    same = replace(SMALL, file="b")
    other = await jobs.moved(end(await jobs.claimed(bundle=same), JobState.FAILED))
    assert await jobs.attach_result(other.key, result("r3", content=b"three"))
    assert await rows(jobs) == {"a": b"first", "r2": b"two", "r3": b"three"}
    assert await jobs.files_in_use(["r1", "r2", "late"]) == {"r1", "r2"}
    assert await jobs.stored("ann") == 2 * 5 + 3 * 3, "they count as files do"
    large = await jobs.moved(end(await jobs.claimed(), JobState.FAILED, result=result("r4")))
    jobs.changed.clear()
    assert await jobs.clean([over, large]) == (2, [(B, "b"), (R, "r1"), (R, "r4")])
    assert [one.state for one in jobs.changed] == [JobState.CLEANED] * 2
    assert await rows(jobs) == {"a": b"first", "r3": b"three"}
    left = [(one.state, one.result) for one in await jobs.attempts(over.id)]
    assert left == [(JobState.FAILED, None)] * 2
    assert not await jobs.attach_result(over.key, result("late"))
    assert await jobs.stored("ann") == 5 + 3
    assert await jobs.delete(other.id) == await jobs.attempts(other.id) == []
    assert await rows(jobs) == {}


@pytest.fixture
def contents(jobs: Store, tmp_path: Path) -> Contents:
    names = iter(f"{number:032x}" for number in range(9))
    scratch = Scratch(tmp_path / "staging", lambda: next(names))
    storage = Storage(tmp_path, scratch, lambda: next(names))
    return Contents(storage, scratch, lambda name: jobs.database.read(bundles.content, name))


async def kept(contents: Contents, content: bytes, *, as_file: bool) -> Result:
    async with contents._storage.pending(R) as pending:
        async with contents._scratch.file() as file:
            file.path.write_bytes(content)
            source = file if as_file else content
            name, few = await contents.keep(pending, source, len(content))
        pending.commit()
    return Result(name, len(content), "", content=few)


@pytest.mark.parametrize("as_file", [True, False])
@pytest.mark.parametrize("size", [0, ROW_BYTES, ROW_BYTES + 1])
async def test_the_size_decides_and_all_are_read_alike(contents, jobs, tmp_path, size, as_file):
    content = os.urandom(size)
    stored = await kept(contents, content, as_file=as_file)
    small = size <= ROW_BYTES
    assert stored.content == (content if small else None)
    assert len([path for path in (tmp_path / R).rglob("*") if path.is_file()]) == (not small)
    committed = replace(stored, content=None)
    for now in (stored, committed):  # before its row is written, and after that
        if now is committed:
            await jobs.database.write(bundles.keep, stored)
        assert await contents.small(now) == (content if small else None)
        async with contents.open(R, now) as pieces:
            assert b"".join([piece async for piece in pieces]) == content
        before = open_files()
        async with contents.local_copy(R, now) as path:
            assert path.read_bytes() == content
            assert path.stat().st_size == size
        assert open_files() == before


async def test_what_is_gone_or_shorter_than_it_was_is_an_error(contents, jobs):
    for size in (5, ROW_BYTES + 5):
        gone = Result("f" * 32, size, "")
        async with contents.local_copy(R, gone) as path:
            with pytest.raises(FileNotFoundError):
                path.read_bytes()
        with pytest.raises(FileNotFoundError):
            async with contents.open(R, gone):
                pass
    large = await kept(contents, bytes(ROW_BYTES + 2), as_file=False)
    with pytest.raises(OSError, match="not as long as it was") as problem:
        async with contents.open(R, replace(large, size=large.size - 1)):
            pass
    assert problem.value.errno == errno.EIO


async def test_a_row_is_there_until_the_thread_that_reads_it_ends(contents, jobs, monkeypatch):
    """Even if its caller is cancelled: the number of a closed memory file is the next one's."""
    begun, go, read = threading.Event(), threading.Event(), list[bytes]()

    def slow(_merge: object, _part: object, path: Path, _bundle: object) -> None:
        begun.set()
        go.wait(60)
        read.append(path.read_bytes())

    monkeypatch.setattr(merged_results, "_add", slow)
    part = merged_results.Part("", await kept(contents, b"content", as_file=False))
    merging = merged_results.merged_results(contents, contents._scratch, [part])
    task = asyncio.create_task(merging.__aenter__())
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await turns(9)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert read == [b"content"]
