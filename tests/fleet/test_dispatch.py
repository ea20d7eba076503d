"""Which job is sent when, which is given up, and why a job waits; on simulated time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from server.domain.batch import Batch
from server.domain.choose import Recent
from server.domain.jobs import Hold, Job
from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from server.http import documents
from server.stages.waiting import why_waiting
from server.store.jobs import SqlJobs
from shared.clock import say_time, utc
from shared.wire import JobState, PayloadState, QueueInfo, Reason, WaitReason
from tests.kit.simulation import World

SERVICES = {
    "example": Service("example", runs_per_user=2, max_runs=3, queue_timeout_s=100.0),
    "patient": Service("patient", runs_per_user=1, max_runs=1),
    "again": Service("again", retry=RetryPolicy(1, (30.0,), retry_on=frozenset({"timeout"}))),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, dict(SERVICES))
    with world.inline():
        yield world
    world.database.close()


async def sweep(world: World) -> None:
    await world.send.run_once()
    await world.settle()


async def waits(world: World, job_id: int) -> QueueInfo | None:
    job = await world.jobs.get(job_id)
    found = await why_waiting([job], world.services, world.jobs, world.registry, world.steady.now())
    return found.get(job_id)


async def reason(world: World, job_id: int) -> str:
    found = await waits(world, job_id)
    assert found is not None
    return found.reason


async def test_a_job_that_waits_too_long_fails_with_the_reason(world) -> None:
    await world.start()
    for agent in world.agents:
        agent.drop()
    first = await world.upload("ann", "example")
    patient = await world.upload("ann", "patient")
    await world.clock.advance(60.0)
    second = await world.upload("ann", "example")
    await world.clock.advance(39.0)
    await sweep(world)
    assert (await world.jobs.get(first)).state is JobState.QUEUED
    await world.clock.advance(2.0)
    await sweep(world)
    gone = await world.jobs.get(first)
    assert (gone.state, gone.reason) == (JobState.FAILED, Reason.QUEUE_TIMEOUT)
    assert "1m 40s in the queue" in gone.message
    assert gone.expires_at is not None
    assert (await world.jobs.get(second)).state is JobState.QUEUED
    await world.clock.advance(100_000.0)
    await sweep(world)
    assert (await world.jobs.get(second)).state is JobState.FAILED
    assert (await world.jobs.get(patient)).state is JobState.QUEUED


async def test_a_job_with_a_start_time_waits_for_it_and_then_in_the_queue(world) -> None:
    await world.start()
    for agent in world.agents:
        agent.drop()
    await world.upload("ann", "patient")
    later = await world.upload("ann", "example", not_before="in 1h")
    await sweep(world)
    waiting = await world.jobs.get(later)
    assert waiting.not_before == world.steady.now() + 3_600 * 10**6
    assert world.send.until_next_s() == 3_600
    await world.clock.advance(3_599.0)
    await sweep(world)
    assert (await world.jobs.get(later)).not_before
    await world.clock.advance(2.0)
    await sweep(world)
    released = await world.jobs.get(later)
    assert (released.state, released.not_before) == (JobState.QUEUED, 0)
    await world.clock.advance(97.0)
    await sweep(world)
    assert (await world.jobs.get(later)).state is JobState.QUEUED
    await world.clock.advance(3.0)
    await sweep(world)
    assert (await world.jobs.get(later)).reason is Reason.QUEUE_TIMEOUT


async def test_a_start_time_holds_whatever_the_clock_does(world) -> None:
    await world.start()
    day = 86_400.0
    later = await world.upload("ann", "patient", not_before="in 1d")
    for jump in (7 * day, -30 * day):
        world.clock.jump(jump)
        await world.clock.advance(10.0)
        await sweep(world)
        assert (await world.jobs.get(later)).state is JobState.QUEUED
        assert (await world.jobs.get(later)).not_before
    await world.clock.advance(1.01 * day)
    await sweep(world)
    assert (await world.jobs.get(later)).state is not JobState.QUEUED


async def test_a_job_shows_its_position_and_why_it_waits(world) -> None:
    await world.start()
    jobs = [await world.upload("ann", "example") for _ in range(4)]
    assert await waits(world, jobs[0]) == QueueInfo(
        position=1, reason="next in turn", code=WaitReason.NEXT
    )
    later = await waits(world, jobs[3])
    assert later == QueueInfo(
        position=4,
        reason="earlier jobs of the same user come first",
        code=WaitReason.EARLIER_JOBS,
    )
    await sweep(world)
    assert [(await world.jobs.get(job)).state for job in jobs] == [JobState.SUBMITTED] * 2 + [
        JobState.QUEUED
    ] * 2
    assert await waits(world, jobs[2]) == QueueInfo(
        position=1,
        reason="user ann has 2 of 2 jobs under way, the most the service allows one user",
        code=WaitReason.USER_QUOTA,
        used=2,
        limit=2,
    )
    other = [await world.upload("bob", "example") for _ in range(2)]
    await sweep(world)
    assert await waits(world, other[1]) == QueueInfo(
        position=1,
        reason="the service has 3 of 3 jobs under way, the most it may have",
        code=WaitReason.SERVICE_QUOTA,
        used=3,
        limit=3,
    )


async def test_a_job_that_an_agent_holds_waits_for_a_slot_there_and_then_for_nothing(world) -> None:
    await world.start()
    job = await world.upload("ann", "patient")
    await sweep(world)
    name = (await world.jobs.get(job)).agent
    agent = next(one for one in world.agents if one.name == name)
    assert await waits(world, job) == QueueInfo(
        position=1,
        reason=f"agent {name} has it and starts it when a slot is free: 0 of {agent.slots} running",
        code=WaitReason.AGENTS_BUSY,
        used=0,
        limit=agent.slots,
    )
    agent.start(agent.payloads[1])
    await world.settle()
    assert await waits(world, job) is None


async def test_a_paused_service_is_claimed_by_nobody_and_its_jobs_say_so(world) -> None:
    await world.start()
    job = await world.upload("ann", "patient")
    paused = replace(world.services["patient"], paused=True, paused_message="new disks")
    world.services["patient"] = paused
    await sweep(world)
    assert await waits(world, job) == QueueInfo(
        position=1, reason="service patient is paused: new disks", code=WaitReason.PAUSED
    )
    world.services["patient"] = SERVICES["patient"]
    await sweep(world)
    assert (await world.jobs.get(job)).state is JobState.SUBMITTED


async def test_a_job_shows_its_place_by_priority_and_when_it_may_be_sent(world) -> None:
    await world.start()
    for agent in world.agents:
        agent.drop()
    low, first, high = [
        await world.upload("ann", "patient", priority=text) for text in ("-1", "0", "9")
    ]
    later = await world.upload("ann", "patient", not_before="in 1h")
    listed = [await world.jobs.get(job) for job in (low, first, high, later)]
    at = say_time(listed[-1].not_before)
    now = world.steady.now()
    found = await why_waiting(listed, world.services, world.jobs, world.registry, now, in_list=True)
    assert [found[job.id].position for job in listed] == [3, 2, 1, 3]
    assert {found[job].code for job in (low, first, high)} == {WaitReason.NO_AGENT}
    assert found[later] == QueueInfo(
        position=3,
        reason=f"to be sent at {at}, as it was asked for",
        code=WaitReason.NOT_BEFORE,
        until=utc(listed[-1].not_before),
    )


async def test_the_start_of_a_job_that_waits_for_a_slot_is_estimated(world) -> None:
    async def lately(_: str) -> Recent:
        return Recent(600.0, {"ann": 3, "bob": 1})

    async def expected(job_id: int, recent: Any = lately) -> float | None:
        job, now = await world.jobs.get(job_id), world.steady.now()
        found = await why_waiting(
            *([job], world.services, world.jobs, world.registry, now), recent, in_list=True
        )
        at = found[job_id].expected_at
        return None if at is None else (at - utc(now)).total_seconds()

    await world.start()
    jobs = [await world.upload("ann", "patient") for _ in range(3)]
    held = await world.upload("ann", "patient", not_before="in 1h")
    after = await world.upload("ann", "patient", after=str(jobs[0]))
    await sweep(world)
    # One is under way; of bob one is before the second, half of one before the first on average.
    assert 900 <= (await expected(jobs[1]) or 0) <= 1_200
    assert 1_800 <= (await expected(jobs[2]) or 0) <= 2_100
    assert await expected(held) is None
    assert await expected(after) is None

    async def unknown(_: str) -> Recent:
        return Recent()

    async def many_users(_: str) -> Recent:
        return Recent(600.0, None)

    assert await expected(jobs[1], unknown) is None
    assert await expected(jobs[1], many_users) is None
    world.services["patient"] = replace(world.services["patient"], paused=True)
    assert await expected(jobs[1]) is None
    world.services["patient"] = SERVICES["patient"]
    for agent in world.agents:
        agent.drop()
    for _ in range(3):
        await world.clock.advance(30.0)
        await sweep(world)
    code = (await waits(world, jobs[1]) or QueueInfo(position=0, reason="")).code
    assert code is WaitReason.NO_AGENT
    assert await expected(jobs[1]) is None


async def test_a_job_names_the_jobs_that_it_waits_for(world) -> None:
    await world.start()
    first = await world.upload("ann", "patient")
    after = await world.upload("ann", "patient", after=str(first))
    assert await waits(world, after) == QueueInfo(
        position=2,
        reason=f"waits for job {first} to complete",
        code=WaitReason.DEPENDENCY,
        waits_for=[first],
    )


async def test_a_parent_says_how_many_children_it_waits_for_and_a_child_how_many_may_run(
    world,
) -> None:
    parent = await world_job(world, deferred=True, state=JobState.RUNNING)
    child = await world_job(world, hold=Hold.PARALLEL, parent_id=parent.id)
    counted = cast("SqlJobs", Counted(world.jobs, parent.id))
    found = await why_waiting([parent, child], world.services, counted, world.registry, 0)
    assert found[parent.id] == QueueInfo(
        position=1,
        reason="waits for its children: 3 of 100 have ended",
        code=WaitReason.CHILDREN,
        used=3,
        limit=100,
    )
    why = found[child.id]
    assert (why.code, why.used, why.limit) == (WaitReason.MAX_PARALLEL, 5, 5)
    assert f"job {parent.id}, has 5 of 5 children under way" in why.reason


async def world_job(world: World, **changes: Any) -> Job:
    """A new job, as it would be with these fields."""
    if not world.alive:
        await world.start()
    return replace(await world.jobs.get(await world.upload("ann", "patient")), **changes)


class Counted:
    """The jobs, with a batch."""

    def __init__(self, jobs: Any, parent_id: int) -> None:
        self._jobs, self._parent_id = jobs, parent_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    async def batches_of(self, parents: Sequence[int]) -> dict[int, Batch]:
        assert list(parents) == [self._parent_id]
        return {
            self._parent_id: Batch(
                self._parent_id, 100, made=50, completed=2, failed=1, max_parallel=5
            )
        }


async def test_a_job_shows_that_no_agent_takes_it(world) -> None:
    await world.start()
    job = await world.upload("ann", "patient")
    for agent in world.agents:
        agent.drop()
    assert await reason(world, job) == "cut off; cut off"


async def test_a_job_that_is_to_be_tried_again_shows_when_and_is_sent_then(world) -> None:
    await world.start()
    job = await world.upload("ann", "again")
    await sweep(world)
    agent = next(one for one in world.agents if one.payloads)
    agent.start(agent.payloads[1])
    await world.settle()
    agent.end(agent.payloads[1], PayloadState.FAILED, Reason.TIMEOUT)
    await world.settle()
    assert (await world.jobs.get(job)).state is JobState.QUEUED
    assert (await reason(world, job)).startswith("to be tried again at ")
    await world.clock.advance(29.0)
    await sweep(world)
    assert (await world.jobs.get(job)).state is JobState.QUEUED
    await world.clock.advance(2.0)
    assert await reason(world, job) == "next in turn"
    await sweep(world)
    assert (await world.jobs.get(job)).attempt == 2
    document = documents.job_doc(await world.jobs.get(job), SERVICES["again"])
    assert document.retries_left == 0


async def test_turns_go_round_the_users_whoever_came_first(world) -> None:
    world.services["one"] = Service("one", runs_per_user=9, max_runs=1)
    await world.start()
    users = ["ann"] * 5 + ["bob"] * 2 + ["cy"]
    owner = {await world.upload(user, "one"): user for user in users}
    order: list[str] = []
    for _ in range(7):
        await sweep(world)
        for agent in world.agents:
            for payload in agent.payloads.values():
                if payload.status is PayloadState.PREPARED:
                    order.append(owner[payload.key.job_id])
                    agent.start(payload)
                    await world.settle()
                    agent.end(payload, PayloadState.COMPLETED)
        await world.settle()
    assert order == ["ann", "bob", "cy", "ann", "bob", "ann", "ann"]
