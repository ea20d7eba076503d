"""Running jobs on simulated time: what they say, from reports to rows, and a cancel that races."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.domain.errors import AlreadyEnded
from server.domain.jobs import Job, Move
from server.domain.service import Service
from shared.principals import LOCAL
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import JobState, LiveDoc, PayloadState, Progress, Reason
from tests.kit.agent_model import Payload
from tests.kit.sim_agent import SimAgent
from tests.kit.simulation import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path, {"s": Service("s")})
    with world.inline():
        await world.start()
        yield world
        await world.die()


async def started(world: World) -> tuple[int, SimAgent, Payload]:
    job_id = await world.upload("ann", "s")
    await world.send.run_once()
    await world.settle()
    ((agent, payload),) = [(one, it) for one in world.agents for it in one.payloads.values()]
    agent.start(payload)
    await world.settle()
    return job_id, agent, payload


async def report(world: World, agent: SimAgent, payload: Payload, **live: object) -> None:
    payload.live = LiveDoc.model_validate(live)
    await world.get.receive(agent, payload.doc(world.clock.now()))
    await world.settle()


async def test_of_many_reports_the_latest_is_written_once_and_later_where_it_cannot_be(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, agent, payload = await started(world)
    for current in range(1, 50):
        await report(world, agent, payload, progress={"current": current}, message=f"at {current}")
    assert (await world.jobs.get(job_id)).progress is None

    async def full(*_: object) -> None:
        raise DatabaseUnavailable(Exception("full"))  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(world.jobs, "record_live", full)
        with pytest.raises(DatabaseUnavailable):
            await world.get.progress.run_once()
    assert await world.get.progress.run_once() == 1
    job = await world.jobs.get(job_id)
    assert (job.progress, job.message) == (Progress(current=49), "at 49")
    assert await world.get.progress.run_once() == 0


async def test_a_report_after_the_end_changes_nothing(world: World) -> None:
    job_id, agent, payload = await started(world)
    await report(world, agent, payload, message="one")
    late = payload.doc(world.clock.now())
    agent.end(payload, PayloadState.COMPLETED)
    world.get.on_payload(agent, late)  # on the way at the same time
    await world.settle()
    assert await world.get.progress.run_once() == 0
    job = await world.jobs.get(job_id)
    assert (job.state, job.message) == (JobState.COMPLETED, "run.sh ended well")
    await world.check()


async def test_a_job_that_ends_just_after_it_was_read_is_cancelled_no_more_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = await world.upload("ann", "s")
    get, now = world.jobs.get, world.steady.now()

    async def ends_after_the_read(job_id: int) -> Job:
        job = await get(job_id)
        if world.cancel._tasks and not job.ended:
            failed = Move(
                *(job_id, job.attempt, JobState.QUEUED, JobState.FAILED, now),
                *("waited too long", Reason.QUEUE_TIMEOUT),
                changes={"ended_at": now},
            )
            assert await world.jobs.move(failed) is not None
        return job

    monkeypatch.setattr(world.jobs, "get", ends_after_the_read)
    cancel = asyncio.create_task(world.cancel(LOCAL, number, 60.0))
    await world.clock.settle()
    done = cancel.done()  # no time has passed
    await world.clock.advance(60.0)
    with pytest.raises(AlreadyEnded):
        await cancel
    assert done
