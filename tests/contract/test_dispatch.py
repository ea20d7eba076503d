"""Which job is sent when, which is given up, and why a job waits; on simulated time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.api import documents
from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from server.stages.waiting import why_waiting
from shared.wire import JobState, PayloadState, QueueInfo, Reason
from tests.support.simulation import World

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
    return await why_waiting(
        job,
        world.services.get(job.service),
        world.jobs,
        world.registry,
        world.steady.now(),
    )


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
    assert await waits(world, jobs[0]) == QueueInfo(position=1, reason="next in turn")
    later = await waits(world, jobs[3])
    assert later == QueueInfo(position=4, reason="earlier jobs of the same user come first")
    await sweep(world)
    assert [(await world.jobs.get(job)).state for job in jobs] == [JobState.SUBMITTED] * 2 + [
        JobState.QUEUED
    ] * 2
    assert await waits(world, jobs[2]) == QueueInfo(
        position=1, reason="user ann has 2 jobs under way, the most the service allows one user"
    )
    other = [await world.upload("bob", "example") for _ in range(2)]
    await sweep(world)
    assert await waits(world, other[1]) == QueueInfo(
        position=1, reason="the service has 3 jobs under way, the most it may have"
    )


async def test_a_job_that_an_agent_holds_waits_for_a_slot_there_and_then_for_nothing(world) -> None:
    await world.start()
    job = await world.upload("ann", "patient")
    await sweep(world)
    name = (await world.jobs.get(job)).agent
    expected = f"agent {name} has it and starts it when a slot is free"
    assert await waits(world, job) == QueueInfo(position=1, reason=expected)
    agent = next(one for one in world.agents if one.name == name)
    agent.start(agent.payloads[1])
    await world.settle()
    assert await waits(world, job) is None


async def test_a_job_shows_that_its_service_is_gone(world) -> None:
    await world.start()
    job = await world.upload("ann", "patient")
    del world.services["patient"]
    assert "no service patient in its settings" in await reason(world, job)


async def test_a_job_shows_that_no_agent_takes_it(world) -> None:
    await world.start()
    job = await world.upload("ann", "patient")
    for agent in world.agents:
        agent.drop()
    assert await reason(world, job) == "cut off; cut off"


async def test_a_job_shows_that_all_slots_of_the_agents_are_taken(world) -> None:
    """Three of the two agents' slots, taken by another service."""
    world.services["wide"] = Service("wide", runs_per_user=9, max_runs=9)
    await world.start()
    for _ in range(3):
        await world.upload("bob", "wide")
    await sweep(world)
    job = await world.upload("ann", "patient")
    before = await reason(world, job)
    assert before != "next in turn"
    await sweep(world)
    assert (await world.jobs.get(job)).state is JobState.QUEUED


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


@pytest.mark.parametrize("times", [1, 7])
async def test_turns_go_round_the_users_whoever_came_first(world, times) -> None:
    world.services["one"] = Service("one", runs_per_user=9, max_runs=1)
    await world.start()
    users = ["ann"] * 5 + ["bob"] * 2 + ["cy"]
    owner = {await world.upload(user, "one"): user for user in users}
    order: list[str] = []
    for _ in range(times):
        await sweep(world)
        for agent in world.agents:
            for payload in agent.payloads.values():
                if payload.status is PayloadState.PREPARED:
                    order.append(owner[payload.key.job_id])
                    agent.start(payload)
                    await world.settle()
                    agent.end(payload, PayloadState.COMPLETED)
        await world.settle()
    assert order == ["ann", "bob", "cy", "ann", "bob", "ann", "ann"][:times]


async def test_jobs_are_spread_over_agents_by_their_free_slots(world) -> None:
    world.services["wide"] = Service("wide", runs_per_user=9, max_runs=9)
    await world.start()
    for _ in range(5):
        await world.upload("ann", "wide")
    await sweep(world)
    assert {agent.name: len(agent.payloads) for agent in world.agents} == {"north": 1, "south": 2}
