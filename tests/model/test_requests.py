"""What users ask for of a job, and what becomes of what it leaves, on simulated time."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.domain.errors import NoSuchJob, QueueFull, RetryRefused
from server.domain.jobs import Job
from server.domain.retry import RetryPolicy
from server.domain.service import Service
from server.store.listed import Filter
from shared.principals import LOCAL, Principal, Role
from shared.wire import JobState, PayloadState, Reason
from tests.model.simulation import World, simulated

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
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with simulated(tmp_path, SERVICES) as world:
        await world.start()
        yield world


async def run(world: World, job_id: int, exit_code: int = 0) -> Job:
    """Send what waits, and let the job's run.sh end."""
    await world.send_and_start()
    (agent, payload) = world.payloads(PayloadState.RUNNING)[0]
    assert payload.key.job_id == job_id
    agent.exit(payload, exit_code)
    await world.settle()
    return await world.jobs.get(job_id)


async def test_a_retried_job_begins_a_new_run_and_its_history_goes_on(world):
    job_id = await world.upload("ann", "s")
    failed = await run(world, job_id, 3)
    assert (failed.state, failed.exit_code, failed.dead_letter) == (JobState.FAILED, 3, False)
    before = [event.seq for event in await world.jobs.events(job_id)]
    again = await world.retry(LOCAL, job_id)
    assert (again.state, again.run, again.attempt) == (JobState.QUEUED, 2, 1)
    assert (again.ended_at, again.expires_at, again.result) == (None, None, None)
    assert (again.reason, again.exit_code, again.usage) == (None, None, None)
    event = (await world.jobs.events(job_id))[-1]
    assert (event.event, event.fields["run"], event.fields["by"]) == ("job.retried", 2, LOCAL.name)
    assert [one.seq for one in await world.jobs.events(job_id)][: len(before)] == before
    done = await run(world, job_id)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 2)
    first, second = await world.jobs.attempts(job_id)
    assert (first.number, first.reason, second.number) == (1, Reason.EXIT_CODE, 2)
    assert first.result is not None
    assert second.result != first.result
    await world.check()


async def test_a_retry_needs_bundle_service_room_in_the_queue_and_the_right_to_see_the_job(world):
    cleaned, job_id = await world.upload("bob", "s"), await world.upload("ann", "s")
    for one in (cleaned, job_id):
        await world.cancel(LOCAL, one, 0.0)
        await world.settle()
        await world.clock.advance(99.0)
        await world.clean.run_once()
    with pytest.raises(RetryRefused, match="cannot be retried: it") as refused:
        await world.retry(LOCAL, cleaned)
    assert refused.value.code == "bundle_gone"
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
    job_id = await world.upload("ann", "dead")

    async def listed() -> list[int]:
        where = Filter(service="dead", dead_letter=True, reason=Reason.EXIT_CODE)
        ids: list[int] = (await world.jobs.ids(where, None, 10))[0]
        return ids

    for passes_s, kept in ((400.0, [job_id]), (501.0, [])):
        await run(world, job_id, 3)
        assert (await run(world, job_id, 3)).dead_letter
        await world.clock.advance(passes_s)
        await world.clean.run_once()
        assert await listed() == kept
        if kept:
            assert not (await world.retry(LOCAL, job_id)).dead_letter
            assert await listed() == []
    assert (await world.jobs.get(job_id)).state is JobState.CLEANED


async def test_a_job_whose_agent_is_away_is_forgotten_when_it_has_died_and_after_a_restart(world):
    job_id = await world.upload("ann", "s")
    await world.send_and_start()
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


async def test_a_late_report_does_not_overwrite_a_cancel_whose_result_is_kept(world):
    job_id = await world.upload("ann", "s")
    await world.send_and_start()
    ((agent, payload),) = world.payloads()
    late = payload.doc(world.clock.now()).model_copy(update={"status": PayloadState.COMPLETED})
    assert (await world.cancel(LOCAL, job_id, 5.0)).state is JobState.CANCELLED
    world.get.inbox.put(agent, late)
    await world.settle()
    job = await world.jobs.get(job_id)
    assert job.state is JobState.CANCELLED
    assert job.result is not None


async def test_the_cleaner_goes_by_the_end_of_the_job_not_by_a_files_age(world):
    job_id = await world.upload("ann", "s")
    await world.send_and_start()
    for path in world.folder.rglob("*"):
        os.utime(path, (0, 0))
    seen = []
    for passes_s in (10_000.0, 99.0, 2.0):
        await world.clock.advance(passes_s)
        await world.clean.run_once()
        seen.append((await world.jobs.get(job_id)).state)
        for agent, payload in world.payloads(PayloadState.RUNNING):
            agent.end(payload, PayloadState.COMPLETED)
        await world.settle()
    assert seen == [JobState.RUNNING, JobState.COMPLETED, JobState.CLEANED]
    assert world.leftovers() == set()
    assert not [path for path in (world.folder / "results").rglob("*") if path.is_file()]


async def test_a_slow_agent_holds_up_nobody_else(world):
    jobs = [await world.upload("ann", "s"), await world.upload("bob", "s")]
    world.agents[0].faults = ["slow"]
    await world.sweep()
    states = {(await world.jobs.get(job_id)).state for job_id in jobs}
    assert states == {JobState.PROCESSING, JobState.SUBMITTED}
