"""Batches from upload to end, with real stages, SQL and files, and simulated agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.domain.errors import RetryRefused
from server.domain.jobs import Job
from server.domain.service import Service
from server.stages.deferral import Children
from shared.files.names import BundleError
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState, Reason
from tests.kit.inline_database import CrashPoint
from tests.kit.simulation import World

SERVICES = {"s": Service("s", runs_per_user=3, max_runs=3, infra_retries=1, expires_after_s=100.0)}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path, dict(SERVICES), CrashPoint())
    with world.inline():
        await world.start()
        yield world
        await world.check()
        await world.die()


async def sweep(world: World, *, failing: str | None = None) -> None:
    """Let everything go as far as it can; what runs ends well, but for the child ``failing``."""
    for _ in range(3):
        await world.batches.run_once()
        await world.send.run_once()
        await world.settle()
    for agent in world.agents:
        for payload in list(agent.payloads.values()):
            if payload.status is PayloadState.PREPARED:
                agent.start(payload)
                child = await world.jobs.get(payload.key.job_id)
                if failing is not None and child.child_name == failing:
                    agent.end(payload, PayloadState.FAILED, Reason.EXIT_CODE)
                else:
                    agent.end(payload, PayloadState.COMPLETED)
    await world.settle()
    await world.batches.run_once()
    await world.check()


async def children(world: World, parent: int) -> list[Job]:
    rows = await world.database.rows(
        "SELECT id FROM jobs WHERE parent_id = :id ORDER BY id", {"id": parent}
    )
    return [await world.jobs.get(row["id"]) for row in rows]


async def test_an_array_completes_with_its_last_task(world: World) -> None:
    parent = await world.upload("ann", "s", array="0-4")
    await world.send.run_once()
    assert (await world.jobs.get(parent)).state is JobState.QUEUED, "it is not sent itself"
    await sweep(world)
    assert (await world.jobs.get(parent)).state is JobState.RUNNING
    await sweep(world)
    job = await world.jobs.get(parent)
    assert (job.state, job.message) == (JobState.COMPLETED, "all 5 children completed")
    assert [one.array_index for one in await children(world, parent)] == [0, 1, 2, 3, 4]
    history = [event.event for event in await world.jobs.events(parent)]
    assert history == ["job.queued", "job.children_queued", "job.completed"]


async def test_a_paused_service_begins_no_batch(world: World) -> None:
    world.services["s"] = Service("s", paused=True)
    parent = await world.upload("ann", "s", array="0-4")
    await world.batches.run_once()
    assert (await world.jobs.get(parent)).state is JobState.QUEUED


async def test_the_parent_of_a_failed_child_fails_when_all_have_ended(world: World) -> None:
    parent = await world.upload("ann", "s", array="0-4")
    await sweep(world, failing="1")
    assert (await world.jobs.get(parent)).state is JobState.RUNNING
    await sweep(world)
    job = await world.jobs.get(parent)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.CHILD_FAILED)
    assert job.message == "1 of 5 children failed: 1 (job 3, exit_code 3)"


async def test_the_first_failure_can_end_a_batch(world: World) -> None:
    parent = await world.upload("ann", "s", array="0-9", batch_policy="fail_fast")
    await sweep(world, failing="1")
    await sweep(world)
    job = await world.jobs.get(parent)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.CHILD_FAILED)
    assert "7 children cancelled because of that (fail_fast)" in job.message


async def test_gather_runs_after_all_children(world: World) -> None:
    parent = await world.upload("ann", "s", array="0-1", gather=True)
    await sweep(world)
    job = await world.jobs.get(parent)
    assert (job.state, job.gather, job.deferred) == (JobState.QUEUED, True, False)
    await sweep(world)
    job = await world.jobs.get(parent)
    assert (job.state, job.message) == (JobState.COMPLETED, "gather.sh ended well")
    assert job.result is not None
    (attempt,) = await world.jobs.attempts(parent)
    assert attempt.state is JobState.COMPLETED


async def test_a_job_that_leaves_children_waits_for_them(world: World) -> None:
    parent = await world.upload("ann", "s", fan_out=True, gather=True)
    await sweep(world)
    job = await world.jobs.get(parent)
    assert (job.state, job.deferred, job.agent) == (JobState.RUNNING, True, None)
    assert await world.jobs.held() == []
    await sweep(world)
    names = [(one.child_name, one.bundle_folder) for one in await children(world, parent)]
    assert names == [("a", "a/"), ("b", "b/")]
    await sweep(world)
    job = await world.jobs.get(parent)
    assert (job.state, job.gather) == (JobState.COMPLETED, True)
    history = [event.event for event in await world.jobs.events(parent)]
    assert history[4:] == [
        *("job.deferred", "job.gather_queued"),
        *("job.processing", "job.submitted", "job.running", "job.completed"),
    ]
    assert job.warnings == ()


async def test_the_end_of_an_attempt_that_left_children_counts_once(world: World) -> None:
    parent = await world.upload("ann", "s", fan_out=True)
    await world.send.run_once()
    await world.settle()
    (agent, payload) = next((a, p) for a in world.agents for p in a.payloads.values())
    agent.start(payload)
    agent.end(payload, PayloadState.COMPLETED)
    await world.settle()
    said = payload.doc(0).model_copy(update={"status": PayloadState.COMPLETED})
    for _ in range(2):  # the acknowledgement was lost: it is reported again
        world.get.on_payload(agent, said)
        await world.settle()
        await world.batches.run_once()
    assert (await world.jobs.batch(parent)).made == 2  # type: ignore[union-attr]
    states = [event.state for event in await world.jobs.events(parent)]
    assert states.count(JobState.RUNNING) == 2, "run.sh started, and it was deferred"
    assert (await world.jobs.get(parent)).deferred


async def test_children_that_cannot_be_run_fail_the_job(world: World) -> None:
    async def bad(*_: object, **__: object) -> Children:
        raise BundleError("no_run_sh", "it has no run.sh, which every child needs", "children/a")

    world.get._deferral._children_of = bad
    parent = await world.upload("ann", "s", fan_out=True)
    await sweep(world)
    job = await world.jobs.get(parent)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.INVALID_BUNDLE)
    assert "it has no run.sh" in job.message
    assert job.result is not None, "what it left can be fetched"


async def test_a_cancelled_parent_ends_when_its_last_child_is_dead(world: World) -> None:
    parent = await world.upload("ann", "s", array="0-9")
    await world.batches.run_once()
    await world.send.run_once()
    await world.settle()
    for agent in world.agents:
        agent.drop()
    await world.cancel(LOCAL, parent, 0.0)
    await world.batches.run_once()
    job = await world.jobs.get(parent)
    assert job.state is JobState.RUNNING, "processes of three children may be alive"
    queued = [one.state for one in await children(world, parent)]
    assert queued.count(JobState.CANCELLED) == 7
    for agent in world.agents:
        await world.reconnect(agent)
    await world.clock.advance(6.0)
    await world.cancel.run_once()
    await world.settle()
    await world.batches.run_once()
    assert (await world.jobs.get(parent)).state is JobState.CANCELLED
    assert {one.state for one in await children(world, parent)} == {JobState.CANCELLED}


async def test_a_batch_is_cleaned_as_a_whole(world: World) -> None:
    parent = await world.upload("ann", "s", fan_out=True)
    for _ in range(3):
        await sweep(world)
    assert (await world.jobs.get(parent)).state is JobState.COMPLETED
    await world.clock.advance(200.0)
    await world.clean.run_once()
    await world.clean.run_once()
    jobs = [await world.jobs.get(parent), *await children(world, parent)]
    assert {job.state for job in jobs} == {JobState.CLEANED}
    assert not world.leftovers()
    assert not await world.database.rows("SELECT 1 FROM bundles")


async def test_a_retried_parent_runs_again_what_has_not_completed(world: World) -> None:
    parent = await world.upload("ann", "s", array="0-2", gather=True)
    await sweep(world, failing="1")
    job = await world.jobs.get(parent)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.CHILD_FAILED)
    failed = (await children(world, parent))[1]
    with pytest.raises(RetryRefused, match=f"job {parent}"):
        await world.retry(LOCAL, failed.id)
    await world.retry(LOCAL, parent)
    await sweep(world)
    await sweep(world)
    job = await world.jobs.get(parent)
    assert (job.state, job.run, job.message) == (JobState.COMPLETED, 2, "gather.sh ended well")
    assert [one.attempt for one in await children(world, parent)] == [1, 2, 1]


async def test_a_child_is_retried_by_itself_while_its_parent_waits(world: World) -> None:
    parent = await world.upload("ann", "s", array="0-4")
    await sweep(world, failing="1")
    await world.retry(LOCAL, (await children(world, parent))[1].id)
    await sweep(world)
    await sweep(world)
    assert (await world.jobs.get(parent)).state is JobState.COMPLETED
