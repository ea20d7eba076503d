"""How long jobs wait, and for what, on simulated time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.domain.jobs import Job
from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from shared.clock import SECOND
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState, Reason, RetryLater
from tests.kit.simulation import World

HOUR = 3_600.0
SERVICES = {
    "s": Service(
        "s",
        queue_timeout_s=100.0,
        retry=RetryPolicy(3, (300.0,), retry_on=frozenset({"heartbeat_timeout"})),
        expires_after_s=HOUR,
    ),
    "free": Service("free"),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, dict(SERVICES))
    with world.inline():
        yield world
    if hasattr(world, "database"):
        world.database.close()


async def attempt(world: World, job_id: int) -> None:
    """Send it and start it."""
    await world.send.run_once()
    await world.settle()
    for agent in world.agents:
        for payload in agent.payloads.values():
            if payload.key.job_id == job_id and payload.status is PayloadState.PREPARED:
                agent.start(payload)
    await world.settle()


async def exit_with(world: World, job_id: int, code: int, later: RetryLater | None = None) -> Job:
    for agent in world.agents:
        for payload in agent.payloads.values():
            if payload.key.job_id == job_id and payload.status is PayloadState.RUNNING:
                agent.exit(payload, code, later)
    await world.settle()
    return await world.jobs.get(job_id)


async def no_agents(world: World) -> None:
    for agent in world.agents:
        agent.drop()


async def waits(world: World, seconds: float) -> None:
    await world.clock.advance(seconds)
    await world.send.run_once()


async def test_a_job_has_a_queue_timeout_of_its_own_up_to_its_services(world):
    await world.start()
    await no_agents(world)
    short = await world.upload("ann", "s", queue_timeout="50s")
    long = await world.upload("ann", "s")
    free = await world.upload("ann", "free", queue_timeout="50s")
    never = await world.upload("ann", "free")
    await waits(world, 51.0)
    states = [(await world.jobs.get(one)).state for one in (short, long, free, never)]
    assert states == [JobState.FAILED, JobState.QUEUED, JobState.FAILED, JobState.QUEUED]
    job = await world.jobs.get(short)
    assert job.reason is Reason.QUEUE_TIMEOUT
    assert job.message == (
        "waited 50s in the queue without a start, which is the most its upload allows; "
        "it has 3 retries left, but queue_timeout would be the same next time"
    )
    await waits(world, 50.0)
    job = await world.jobs.get(long)
    assert "100s" in job.message or "1m 40s" in job.message
    assert (await world.jobs.get(never)).state is JobState.QUEUED


async def test_no_job_fails_for_its_queue_timeout_while_its_service_is_paused(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    world.services["s"] = replace(SERVICES["s"], paused=True)
    await waits(world, 500.0)
    assert (await world.jobs.get(job_id)).state is JobState.QUEUED
    world.services["s"] = SERVICES["s"]
    await waits(world, 1.0)
    assert (await world.jobs.get(job_id)).reason is Reason.QUEUE_TIMEOUT


async def test_the_time_in_the_queue_of_a_job_that_is_tried_later_goes_on(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    for number, delay in enumerate((30.0, 40.0), 1):
        await attempt(world, job_id)
        asked = RetryLater(after_s=delay, message="GPU busy")
        job = await exit_with(world, job_id, 75, asked)
        assert (job.state, job.later_used, job.retries_used) == (JobState.QUEUED, number, 0)
        assert job.not_before == world.steady.now() + delay * SECOND
        await waits(world, delay)
    assert (await world.jobs.get(job_id)).state is not JobState.FAILED, "70 s"
    job = await exit_with(world, job_id, 75, RetryLater(after_s=60.0))
    await world.settle()
    await attempt(world, job_id)
    job = await exit_with(world, job_id, 75, RetryLater(after_s=60.0))
    assert job.state is JobState.QUEUED
    await waits(world, 31.0)
    job = await world.jobs.get(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.QUEUE_TIMEOUT), (
        "its delay is not over"
    )
    ended = [one.state for one in await world.jobs.attempts(job_id)]
    assert ended == [JobState.FAILED] * 3, "the attempts keep what they left"
    assert all(one.result is not None for one in await world.jobs.attempts(job_id))


async def test_the_delay_of_a_retry_is_no_time_in_the_queue(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    await attempt(world, job_id)
    (agent, payload) = next(
        (agent, one) for agent in world.agents for one in agent.payloads.values()
    )
    agent.end(payload, PayloadState.FAILED, Reason.HEARTBEAT_TIMEOUT)
    await world.settle()
    job = await world.jobs.get(job_id)
    assert (job.state, job.reason, job.retries_used) == (
        JobState.QUEUED,
        Reason.HEARTBEAT_TIMEOUT,
        1,
    )
    await no_agents(world)
    await waits(world, 399.0)
    assert (await world.jobs.get(job_id)).state is JobState.QUEUED
    await waits(world, 2.0)
    assert (await world.jobs.get(job_id)).reason is Reason.QUEUE_TIMEOUT


@pytest.mark.parametrize("skew_s", [-HOUR, HOUR])
async def test_an_agent_whose_clock_is_an_hour_off_makes_no_absurd_times(world, skew_s):
    await world.start()
    for agent in world.agents:
        agent.skew_s = skew_s
    job_id = await world.upload("ann", "s")
    await attempt(world, job_id)
    await world.clock.advance(20.0)
    job = await exit_with(world, job_id, 0)
    assert job.state is JobState.COMPLETED
    times = [job.created_at, job.submitted_at or 0, job.started_at or 0, job.ended_at or 0]
    assert times == sorted(times)
    assert times[-1] == world.steady.now()
    assert job.expires_at == times[-1] + HOUR * SECOND
    history = [event.at for event in await world.jobs.events(job_id)]
    assert history == sorted(history)
    await world.clean.run_once()
    assert (await world.jobs.get(job_id)).state is JobState.COMPLETED, "it has not expired"


async def test_the_log_says_of_each_attempt_how_long_it_ran_and_how_long_it_had_waited(world):
    await world.start()
    with capture_logs() as lines:
        job_id = await world.upload("ann", "s")
        await world.clock.advance(7.0)
        await attempt(world, job_id)
        await world.clock.advance(20.0)
        await exit_with(world, job_id, 75, RetryLater(after_s=60.0))
        await world.clock.advance(65.0)
        await attempt(world, job_id)
        await world.clock.advance(30.0)
        await world.cancel(LOCAL, job_id, 5.0)
        await world.settle()
    ends = [one for one in lines if one["event"] in ("job.requeued", "job.ended")]
    assert [(one["event"], one["run_s"], one["wait_s"]) for one in ends] == [
        ("job.requeued", 20.0, 7.0),
        ("job.ended", 30.0, 65.0),
    ]
