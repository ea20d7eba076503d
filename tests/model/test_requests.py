"""What users ask for of a job on simulated time: retry, cancel, delete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.domain.errors import AlreadyEnded, NoSuchJob, QueueFull, RetryRefused
from server.domain.jobs import Job
from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from server.ports import Filter
from shared.principals import LOCAL, Principal, Role
from shared.wire import JobState, PayloadState, Reason
from tests.kit.simulation import World

SERVICES = {
    "s": Service("s", queued_per_user=3, expires_after_s=100.0),
    "dead": Service(
        "dead",
        dead_letter=True,
        dead_letter_expires_after_s=500.0,
        expires_after_s=100.0,
        retry=RetryPolicy(1, (0.0,), retry_on=frozenset({"exit_code"})),
    ),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, dict(SERVICES))
    with world.inline():
        yield world
    if hasattr(world, "database"):
        world.database.close()


async def run(world: World, job_id: int, status: PayloadState, reason: Reason | None = None) -> Job:
    """Send what waits, start it, and end the job's attempt."""
    await world.send.run_once()
    await world.settle()
    job = await world.jobs.get(job_id)
    agent, payload = next(
        (agent, payload)
        for agent in world.agents
        for payload in agent.payloads.values()
        if payload.key == job.key
    )
    agent.start(payload)
    await world.settle()
    agent.end(payload, status, reason)
    await world.settle()
    return await world.jobs.get(job_id)


async def fail(world: World, job_id: int) -> Job:
    return await run(world, job_id, PayloadState.FAILED, Reason.EXIT_CODE)


async def test_a_retried_job_begins_a_new_run_and_its_history_goes_on(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    failed = await fail(world, job_id)
    assert (failed.state, failed.exit_code, failed.dead_letter) == (JobState.FAILED, 3, False)
    before = [event.seq for event in await world.jobs.events(job_id)]
    again = await world.retry(LOCAL, job_id)
    assert (again.state, again.run, again.attempt) == (JobState.QUEUED, 2, 1)
    assert (again.ended_at, again.expires_at, again.result) == (None, None, None)
    assert (again.reason, again.exit_code, again.usage) == (None, None, None)
    event = (await world.jobs.events(job_id))[-1]
    assert (event.event, event.fields["run"], event.fields["by"]) == ("job.retried", 2, LOCAL.name)
    assert [one.seq for one in await world.jobs.events(job_id)][: len(before)] == before
    done = await run(world, job_id, PayloadState.COMPLETED)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 2)
    first, second = await world.jobs.attempts(job_id)
    assert (first.number, first.reason, second.number) == (1, Reason.EXIT_CODE, 2)
    assert first.result is not None
    assert second.result != first.result
    await world.check()


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (JobState.QUEUED, "not_retryable"),
        (JobState.COMPLETED, "not_retryable"),
        (JobState.CLEANED, "bundle_gone"),
    ],
)
async def test_what_cannot_be_retried_is_refused_with_the_reason(world, state, code):
    await world.start()
    job_id = await world.upload("ann", "s")
    if state is JobState.COMPLETED:
        await run(world, job_id, PayloadState.COMPLETED)
    if state is JobState.CLEANED:
        await fail(world, job_id)
        await world.clock.advance(101.0)
        await world.clean.run_once()
    assert (await world.jobs.get(job_id)).state is state
    with pytest.raises(RetryRefused, match="cannot be retried: it") as refused:
        await world.retry(LOCAL, job_id)
    assert refused.value.code == code


async def test_a_retry_needs_a_service_and_room_in_the_queue_and_the_right_to_see_the_job(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    await world.cancel(LOCAL, job_id, 0.0)
    await world.settle()
    with pytest.raises(NoSuchJob):
        await world.retry(Principal("bob", Role.USER, "bob"), job_id)
    for _ in range(3):
        await world.upload("ann", "s")
    with pytest.raises(QueueFull):
        await world.retry(LOCAL, job_id)
    del world.services["s"]
    with pytest.raises(RetryRefused) as refused:
        await world.retry(LOCAL, job_id)
    assert refused.value.code == "unknown_service"


async def test_dead_letters_are_kept_for_their_own_time_and_left_by_a_retry(world):
    await world.start()
    job_id = await world.upload("ann", "dead")
    await fail(world, job_id)
    assert (await fail(world, job_id)).dead_letter

    async def listed() -> list[int]:
        where = Filter(service="dead", dead_letter=True, reason=Reason.EXIT_CODE)
        ids: list[int] = (await world.jobs.ids(where, None, 10))[0]
        return ids

    await world.clock.advance(400.0)
    await world.clean.run_once()
    assert await listed() == [job_id]
    assert not (await world.retry(LOCAL, job_id)).dead_letter
    assert await listed() == []
    await fail(world, job_id)
    await fail(world, job_id)
    await world.clock.advance(501.0)
    await world.clean.run_once()
    assert (await world.jobs.get(job_id)).state is JobState.CLEANED
    assert await listed() == []


async def test_a_job_whose_agent_is_away_is_forgotten_when_it_has_died_and_after_a_restart(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    await world.send.run_once()
    await world.settle()
    for agent in world.agents:
        agent.drop()
    waiting = await world.delete.forget(LOCAL, job_id)
    assert waiting is not None
    assert waiting.delete_requested_at is not None
    await world.die()
    await world.start()
    for agent in world.agents:
        await world.reconnect(agent)
    await world.cancel.run_once()
    await world.settle()
    await world.clean.run_once()
    with pytest.raises(NoSuchJob):
        await world.jobs.get(job_id)
    world.acknowledged.clear()
    await world.settle()
    await world.remove_orphans()
    assert not world.leftovers()


async def test_a_job_that_has_not_ended_is_cancelled_by_a_delete_and_deleted_by_the_next(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    await world.send.run_once()
    await world.settle()
    kept = await world.delete(LOCAL, job_id, 5.0)
    assert kept is not None
    assert (kept.state, kept.delete_requested_at) == (JobState.CANCELLED, None)
    assert await world.jobs.get(job_id) == kept
    assert await world.delete(LOCAL, job_id, 5.0) is None
    (payload,) = [p for agent in world.agents for p in agent.payloads.values()]
    assert payload.status in (PayloadState.KILLED, PayloadState.CLEANED)
    with pytest.raises(NoSuchJob):
        await world.jobs.get(job_id)


async def test_a_cancel_of_an_ended_job_changes_nothing(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    done = await run(world, job_id, PayloadState.COMPLETED)
    with pytest.raises(AlreadyEnded):
        await world.cancel(LOCAL, job_id, 0.0)
    assert await world.jobs.get(job_id) == done
