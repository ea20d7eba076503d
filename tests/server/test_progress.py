"""Progress, values and lines of running jobs, from reports to documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from shared.clock import iso
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import JobState, LiveDoc, Notice, PayloadState, Progress
from tests.kit.agent_model import Payload
from tests.kit.sim_agent import SimAgent
from tests.kit.simulation import World


@pytest.fixture
async def world(tmp_path: Path):
    retry = RetryPolicy(1, (0.0,), retry_on=frozenset({"exit_code"}))
    service = Service("s", runs_per_user=10, max_runs=10, retry=retry)
    world = World(tmp_path, {"s": service})
    with world.inline():
        await world.start()
        yield world
        await world.die()


async def started(world: World) -> tuple[int, SimAgent, Payload]:
    job_id = await world.upload("ann", "s")
    await world.send.run_once()
    await world.settle()
    for agent in world.agents:
        for payload in agent.payloads.values():
            if payload.key.job_id == job_id:
                agent.start(payload)
                await world.settle()
                return job_id, agent, payload
    raise AssertionError("no agent has it")


async def report(world: World, agent: SimAgent, payload: Payload, **live: object) -> None:
    payload.live = LiveDoc.model_validate(live)
    await world.get.receive(agent, payload.doc(world.clock.now()))
    await world.settle()


async def test_of_many_reports_the_latest_is_written_once(world: World) -> None:
    job_id, agent, payload = await started(world)
    for current in range(1, 50):
        await report(world, agent, payload, progress={"current": current}, message=f"at {current}")
    assert (await world.jobs.get(job_id)).progress is None
    assert await world.get.progress.run_once() == 1
    job = await world.jobs.get(job_id)
    assert (job.progress, job.message) == (Progress(current=49), "at 49")
    assert await world.get.progress.run_once() == 0


async def test_what_was_said_last_comes_with_the_end(world: World) -> None:
    job_id, agent, payload = await started(world)
    at = iso(world.clock.now())
    payload.live = LiveDoc(
        progress=Progress(current=3, total=3),
        message="done",
        output={"score": "1"},
        heartbeat_at=at,
        notices=[Notice(level="notice", text="hello", at=at)],
    )
    agent.end(payload, PayloadState.COMPLETED)
    await world.settle()
    job = await world.jobs.get(job_id)
    assert (job.state, job.progress, job.output) == (
        JobState.COMPLETED,
        Progress(current=3, total=3),
        {"score": "1"},
    )
    assert job.heartbeat_at is not None
    assert iso(job.heartbeat_at) == at
    events = [one.event for one in await world.jobs.events(job_id)]
    assert events[-3:] == ["job.notice", "job.output", "job.completed"]
    await world.check()


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


async def test_a_job_that_was_unknown_runs_again_by_what_its_agent_lists(world: World) -> None:
    job_id, agent, payload = await started(world)
    await report(world, agent, payload, message="one")
    await world.get.progress.run_once()
    agent.drop()
    await world.clock.advance(61.0)
    await world.poll.run_once()
    assert (await world.jobs.get(job_id)).state is JobState.UNKNOWN
    await agent.connect()
    await world.settle()
    await world.get.progress.run_once()
    job = await world.jobs.get(job_id)
    assert (job.state, job.message) == (JobState.RUNNING, "one")


async def test_what_could_not_be_written_is_written_later(world: World, monkeypatch) -> None:
    job_id, agent, payload = await started(world)
    await report(world, agent, payload, message="one")

    async def full(*_: object) -> None:
        raise DatabaseUnavailable(Exception("full"))  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(world.jobs, "record_live", full)
        with pytest.raises(DatabaseUnavailable):
            await world.get.progress.run_once()
    assert await world.get.progress.run_once() == 1
    assert (await world.jobs.get(job_id)).message == "one"
