"""What users ask for of a job, and what becomes of what it leaves, on simulated time."""

import pytest

from server.domain.allowances import OverQuota
from server.domain.errors import NoSuchJob
from server.domain.service import Service
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState

SERVICES = {"s": Service("s", queued_per_user=3, expires_after_s=100.0)}


async def test_a_retry_needs_room_in_the_queue(world):
    job_id = await world.upload("ann", "s")
    await world.cancel(LOCAL, job_id, 0.0)
    await world.settle()
    for _ in range(3):
        await world.upload("ann", "s")
    with pytest.raises(OverQuota):
        await world.retry(LOCAL, job_id)


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


async def test_a_slow_agent_holds_up_nobody_else(world):
    jobs = [await world.upload("ann", "s"), await world.upload("bob", "s")]
    world.agents[0].faults = ["slow"]
    await world.sweep()
    states = {(await world.jobs.get(job_id)).state for job_id in jobs}
    assert states == {JobState.PROCESSING, JobState.SUBMITTED}
