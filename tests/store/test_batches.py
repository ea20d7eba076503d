"""Batches: children are made once, and counted at each move."""

import asyncio
import sqlite3
from typing import Any

import pytest

from server.domain import batch as rules
from server.domain import ending
from server.domain.allowances import OverQuota, Quota
from server.domain.batch import Batch
from server.domain.choose import Candidate
from server.domain.errors import ChildOfBatch
from server.domain.jobs import BatchRequest, Bundle, Job, Move
from server.store import batches, queue, retention
from server.store.pages import Filter
from shared.wire import JobState
from tests.kit.store import Store, claim, end, new, service

SERVICE = service()
HERE = [Candidate("node", 100)]


async def array(
    jobs: Store, count: int, made: int | None = None, *, more: Any = None, **fields: Any
) -> Job:
    """A parent whose first ``made`` children (None: all) are there."""
    request = BatchRequest(((0, count - 1, 1),), **fields)
    parent = await jobs.upload(batch=request, **(more or {}))
    begun = await jobs.begin_batch(parent.id, 20)
    assert begun is not None
    assert await make(jobs, parent, count if made is None else made)
    job: Job = begun[0]
    return job


async def batch_of(jobs: Store, parent: Job) -> Batch:
    batch = await jobs.batch(parent.id)
    assert batch is not None
    return batch


async def make(jobs: Store, parent: Job, most: int) -> Batch | None:
    seen = await batch_of(jobs, parent)
    return await jobs.make_children(seen, rules.tasks(seen, seen.made, most), 30, "of an array")


async def cancelled(jobs: Store, parent: Job) -> Job:
    """The parent, of which no child is under way."""
    await jobs.request_cancel(parent.id, 50)
    over: Job | None = await jobs.end_batch(parent.id, SERVICE, 60)
    assert over is not None
    return over


def to(job: Job, state: JobState, at: int = 40) -> Move:
    if state is JobState.QUEUED:
        changes = dict.fromkeys(("ended_at", "cancel_requested_at")) | {"run": job.run + 1}
        return Move(job.id, job.attempt, job.state, state, at, "retried", changes=changes)
    return ending.end(job, SERVICE, at, state, "ended")


async def test_a_child_is_as_its_parent_asked(jobs: Store) -> None:
    more = {"name": "scan", "tags": ("t",), "priority": 7, "submitted_by": "portal"}
    parent = await array(jobs, 3, more=more)
    first, _, last = await jobs.children_of(parent)
    assert (first.state, first.array_index, first.child_name) == (JobState.QUEUED, 0, "0")
    assert last.name == "scan[2]"
    for name in ("tags", "priority", "submitted_by", "user_id", "limits", "timeout_s", "bundle"):
        assert getattr(last, name) == getattr(parent, name), name
    (event,) = await jobs.events(last.id)
    assert (event.before, event.state, event.event) == (None, JobState.QUEUED, "job.queued")
    tagged, _ = await jobs.page(Filter(tag="t"), None, 10)
    assert len(tagged) == 4
    await jobs.check()


async def test_the_line_of_a_task_goes_with_its_files(jobs: Store) -> None:
    parent = await array(jobs, 2, made=0, array_file="p")
    seen = await batch_of(jobs, parent)
    tasks = rules.tasks(seen, 0, 2, ["secret one", long := "\1" * 60_000])
    # Nor is the length of what is sent to the database that of all lines together.
    await jobs.database.run(lambda one: one.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 90_000))
    assert await jobs.make_children(seen, tasks, 30, "of an array")
    first, _ = await jobs.children_of(parent)
    assert first.array_line == "secret one"
    assert await jobs.clean([await jobs.moved(end(first, JobState.CANCELLED))]) == (1, [])
    assert [one.array_line for one in await jobs.children_of(parent)] == [None, long]


async def test_children_are_made_once_whoever_makes_them_and_none_of_a_cancelled_parent(jobs):
    parent = await array(jobs, 10, made=4)
    seen = await batch_of(jobs, parent)
    more = [jobs.make_children(seen, rules.tasks(seen, 4, 5), 30, "") for _ in range(2)]
    assert [one is not None for one in await asyncio.gather(*more)].count(True) == 1
    names = [child.child_name for child in await jobs.children_of(parent)]
    assert names == [str(n) for n in range(9)]
    await jobs.request_cancel(parent.id, 50)
    assert not await make(jobs, parent, 1)
    await jobs.check()


async def test_as_many_children_may_run_as_the_upload_says(jobs: Store) -> None:
    parent = await array(jobs, 5, made=3, max_parallel=2)
    assert await make(jobs, parent, 2)
    await jobs.check()
    running = await jobs.claim_fairly(SERVICE, HERE, 10, 40)
    assert [job.child_name for job in running] == ["0", "1"]
    await jobs.moved(to(running[1], JobState.FAILED))
    await jobs.check()
    (following,) = await jobs.claim_fairly(SERVICE, HERE, 10, 50)
    assert following.child_name == "2"
    again = await jobs.moved(to(await jobs.get(running[1].id), JobState.QUEUED))
    assert again.hold is not None, "two are under way"
    await jobs.check()


async def test_a_cancel_of_a_parent_cancels_what_waits_and_asks_for_the_rest(jobs: Store) -> None:
    parent = await array(jobs, 1_200)
    first, second = await jobs.claim_fairly(SERVICE, HERE, 2, 40)
    await jobs.moved(to(second, JobState.FAILED))
    jobs.changed.clear()
    await jobs.request_cancel(parent.id, 50)
    assert len(jobs.changed) == 1 + 1_199, "those who wait for a child are woken"
    assert [job.id for job in await jobs.to_cancel()] == [parent.id, first.id]
    batch = await batch_of(jobs, parent)
    assert (batch.failed, batch.cancelled, batch.ended) == (1, 1_198, 1_199)
    event = (await jobs.events(first.id + 5))[-1]
    assert (event.before, event.state) == (JobState.QUEUED, JobState.CANCELLED)
    await jobs.check()


async def test_a_cancel_of_many_children_lets_others_in_and_outlives_a_crash(jobs, monkeypatch):
    monkeypatch.setattr(batches, "_AT_ONCE", 2)
    parent = await array(jobs, 6)
    write, commits = jobs.database.write, 0

    async def crashes_in_between(*change: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits > 2:
            raise MemoryError  # the server is gone
        return await write(*change)

    with monkeypatch.context() as patched:
        patched.setattr(jobs.database, "write", crashes_in_between)
        with pytest.raises(MemoryError):
            await jobs.request_cancel(parent.id, 50)
    queued = [one for one in await jobs.children_of(parent) if not one.ended]
    assert len(queued) == 4
    assert await jobs.claim_fairly(SERVICE, HERE, 10, 60) == [], "its parent is to be cancelled"
    await jobs.check()
    due = await jobs.due_batches(["s"], 10)
    assert [job.id for job, _ in due] == [parent.id], "the sweep goes on with it"
    await jobs.cancel_children(parent.id, 70)
    assert {one.state for one in await jobs.children_of(parent)} == {JobState.CANCELLED}
    await jobs.check()


async def test_a_batch_ends_or_is_given_up_as_its_children_are_now(jobs: Store) -> None:
    parent = await array(jobs, 2, fail_fast=True)
    children = await jobs.claim_fairly(SERVICE, HERE, 2, 40)
    failed, _ = [await jobs.moved(to(child, JobState.FAILED)) for child in children]
    await jobs.moved(to(failed, JobState.QUEUED))
    await jobs.moved(to(await jobs.get(children[1].id), JobState.QUEUED))
    assert await jobs.end_batch(parent.id, SERVICE, 50) is None, "they were retried meanwhile"
    await jobs.cancel_children(parent.id, 60)
    assert {one.state for one in await jobs.children_of(parent)} == {JobState.QUEUED}


async def test_children_count_for_the_quotas_before_they_are_made_and_at_a_retry(jobs):
    parent = await array(jobs, 8, made=0)
    for batch in (BatchRequest(((0, 7, 1),)), None):
        with pytest.raises(OverQuota):
            await jobs.insert(new(batch=batch), "queued", Quota(8))
    assert await jobs.database.write(queue.count_queued, "s", "ann") == 8
    over = await cancelled(jobs, parent)
    with pytest.raises(OverQuota):
        await jobs.retry(over.id, lambda job: to(job, JobState.QUEUED), lambda _: 7)
    assert await jobs.retry(over.id, lambda job: to(job, JobState.QUEUED), lambda _: 8) is not None


async def test_files_of_a_batch_are_kept_until_all_of_it_is_cleaned(jobs: Store) -> None:
    parent = await array(jobs, 3, more={"bundle": Bundle("b", 100, "digest")})
    assert await jobs.stored("ann") == 100, "a shared bundle counts once"
    over = await cancelled(jobs, parent)
    assert [job.id for job in await jobs.expired(10**15, 10)] == [parent.id]
    with pytest.raises(ChildOfBatch):
        await jobs.delete(parent.id + 1)
    assert await jobs.clean([over]) == (1, [])
    expired = await jobs.expired(70, 10)
    assert len(expired) == 3
    _, files = await jobs.clean(expired)
    assert [file for _, file in files] == ["b"]
    await jobs.check()
    for left in (1, 0):
        await jobs.forget("s", 10**15, 100)
        rows = await jobs.rows("SELECT id FROM jobs")
        assert len(rows) == left, "children first"


async def test_children_expire_some_at_a_time_once_their_parents_are_cleaned(jobs, monkeypatch):
    monkeypatch.setattr(retention, "_CHILDREN_AT_ONCE", 4)
    parents = [await array(jobs, count) for count in (3, 2, 1)]
    over = [await cancelled(jobs, parent) for parent in parents]
    await jobs.database.write(retention.clean, over[:2], 70)
    left, more = list[int](), True
    while more:
        left.append(len(await jobs.rows("SELECT 1 FROM batches WHERE rest_after IS NOT NULL")))
        more = await jobs.database.write(retention.expire_children, 70)
        left.append(len(await jobs.expired(70, 10)))
    assert left == [2, 4, 2, 5], "in two transactions: between them a crash leaves the rest"
    assert await jobs.rows("SELECT 1 FROM batches WHERE rest_after IS NOT NULL") == []


async def test_children_are_queued_again_some_at_a_time_and_none_twice(jobs, monkeypatch):
    """Those that fail again meanwhile stay so, and the batch does not end before the last."""
    monkeypatch.setattr(batches, "_AT_ONCE", 2)
    parent = await array(jobs, 5, max_parallel=3)
    again = await jobs.moved(to(await cancelled(jobs, parent), JobState.QUEUED))
    assert await jobs.begin_batch(again.id, 60)
    first, _, third, *_ = await jobs.children_of(parent)
    assert (first.run, third.run, third.state) == (2, 1, JobState.CANCELLED)
    await jobs.moved(to(await jobs.moved(claim(first)), JobState.FAILED))
    waiting, states = list[int](), list[tuple[JobState, int]]()
    while (await batch_of(jobs, parent)).rest_after is not None:
        await jobs.check()
        due = await jobs.due_batches(["s"], 10)  # what a start after a crash goes on with
        assert [job.id for job, _ in due] == [parent.id]
        await jobs.database.write(batches.queue_again, parent.id, 70)
        states = [(one.state, one.run) for one in await jobs.children_of(parent)]
        waiting.append(states.count((JobState.QUEUED, 2)))
    assert waiting == [3, 4]
    assert states == [(JobState.FAILED, 2), *[(JobState.QUEUED, 2)] * 4]
    batch = await batch_of(jobs, parent)
    assert (batch.failed, batch.cancelled) == (1, 0)
    await jobs.check()


async def test_a_cancel_ends_what_was_to_be_queued_again(jobs: Store, monkeypatch) -> None:
    monkeypatch.setattr(batches, "_AT_ONCE", 2)
    parent = await array(jobs, 5)
    again = await jobs.moved(to(await cancelled(jobs, parent), JobState.QUEUED))
    assert await jobs.begin_batch(again.id, 60)
    await jobs.request_cancel(parent.id, 70)
    await jobs.database.write(batches.queue_again, parent.id, 70)
    assert (await batch_of(jobs, parent)).cancelled == 5
    assert not (await jobs.totals()).queued
    await jobs.check()


async def test_a_parent_that_is_being_deleted_is_not_retried_and_takes_its_children_along(jobs):
    parent = await array(jobs, 1_200)
    over = await cancelled(jobs, parent)
    await jobs.database.write(retention.delete, parent.id)  # some children are gone from now on
    assert await jobs.move(to(over, JobState.QUEUED)) is None
    assert [file for _, file in await jobs.delete(parent.id)] == ["b"]
    assert not await jobs.rows("SELECT 1 FROM jobs UNION SELECT 1 FROM events")


async def test_no_transaction_grows_with_the_number_of_children(jobs, monkeypatch):
    """Others wait for each: what is made and what is cancelled is counted in rows."""
    write, largest = jobs.database.write, list[int]()

    async def counted(change: Any, *args: Any) -> Any:
        def both(tx: Any) -> Any:
            (before,) = tx.rows("SELECT total_changes() AS count")
            done = change(tx, *args)
            (after,) = tx.rows("SELECT total_changes() AS count")
            largest[-1] = max(largest[-1], after["count"] - before["count"])
            return done

        return await write(both)

    monkeypatch.setattr(jobs.database, "write", counted)
    for count in (600, 1_200):
        largest.append(0)
        parent = await array(jobs, count, made=0)
        while (await batch_of(jobs, parent)).made < count:
            assert await make(jobs, parent, 300)
        await cancelled(jobs, parent)
        assert (await batch_of(jobs, parent)).cancelled == count
    assert largest[1] <= largest[0]
    await jobs.check()
