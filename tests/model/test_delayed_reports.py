"""Reports of an attempt that goes on wait a moment: what comes meanwhile is one move."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from server.domain.service import Service
from shared.clock import iso
from shared.wire import JobState, PayloadState
from tests.kit.agent_model import Payload
from tests.model.sim_agent import SimAgent
from tests.model.simulation import World

DELAY_S = 0.05


@pytest.fixture
async def world(tmp_path: Path):
    world = World(
        tmp_path, {"s": Service("s", runs_per_user=10, max_runs=10)}, report_delay_s=DELAY_S
    )
    with world.inline():
        await world.start()
        yield world
        await world.check()
        await world.die()


async def sent(world: World) -> tuple[int, SimAgent, Payload]:
    job_id = await world.upload("ann", "s")
    await world.send.run_once()
    await world.settle()
    (found,) = ((agent, one) for agent in world.agents for one in agent.payloads.values())
    return job_id, *found


async def history(world: World, job_id: int) -> list[JobState]:
    return [event.state for event in await world.jobs.events(job_id)]


async def test_what_an_agent_has_taken_is_written_after_a_moment(world: World, monkeypatch) -> None:
    """Until then its agent is not asked for it, even if its row was read before."""
    job_id, asked, read = await world.upload("ann", "s"), Mock(), world.database.read
    for agent in world.agents:
        monkeypatch.setattr(agent, "settle", asked)

    async def read_before(*args: Any) -> Any:
        rows = await read(*args)
        await world.settle()
        return rows

    await world.send.run_once()
    taken_at = world.steady.now()
    with monkeypatch.context() as patch:
        patch.setattr(world.database, "read", read_before)
        await world.deliver.resume_interrupted()
    await world.settle()
    asked.assert_not_called()
    job = await world.jobs.get(job_id)
    assert (job.state, job.key in world.get.inbox.taken()) == (JobState.PROCESSING, True)
    await world.clock.advance(DELAY_S)
    job = await world.jobs.get(job_id)
    assert (job.state, job.submitted_at) == (JobState.SUBMITTED, taken_at)
    assert job.key not in world.get.inbox.taken()


@pytest.mark.parametrize("how", ["started", "answered after its start", "ended"])
async def test_what_came_meanwhile_is_one_move_and_an_end_waits_for_nothing(
    world: World, how: str
) -> None:
    job_id, agent, payload = await sent(world)
    prepared = payload.doc(world.clock.now())
    agent.start(payload)
    if how == "ended":
        agent.end(payload, PayloadState.COMPLETED)
        await world.settle()
    elif how != "started":
        world.get.inbox.put(agent, prepared)
    await world.clock.advance(DELAY_S * (how != "ended"))
    ended = ["Completed"] * (how == "ended")
    states = ["Queued", "Processing", "Submitted", "Running", *ended]
    assert await history(world, job_id) == states


async def test_a_start_is_told_by_when_the_agent_took_the_job(world: World) -> None:
    """The clock of the agent is an hour behind."""
    job_id, agent, payload = await sent(world)
    taken_at, created = world.steady.now(), world.clock.now() - 3_600_000_000
    await world.clock.advance(DELAY_S / 2)
    agent.start(payload)
    times = {"created_at": iso(created), "started_at": iso(created + 1_000)}
    world.get.inbox.put(agent, payload.doc(world.clock.now()).model_copy(update=times))
    await world.clock.advance(DELAY_S)
    job = await world.jobs.get(job_id)
    assert (job.submitted_at, job.started_at) == (taken_at, taken_at + 1_000)


async def test_a_server_that_dies_meanwhile_asks_its_agent(world: World) -> None:
    job_id, _, _ = await sent(world)
    await world.die()
    await world.start()
    await world.send.run_once()
    await world.settle()
    await world.clock.advance(DELAY_S)
    assert (await history(world, job_id))[-1] is JobState.SUBMITTED


async def test_reports_that_rest_are_forgotten_with_their_agent(world: World) -> None:
    job_id, agent, payload = await sent(world)
    agent.start(payload)
    await world.get.stop(agent.name)
    await world.clock.advance(DELAY_S)
    assert (await history(world, job_id))[-1] is JobState.PROCESSING
    assert not world.get.inbox.taken()
    await agent.connect()
    await world.clock.advance(DELAY_S)
    assert (await history(world, job_id))[-1] is JobState.RUNNING


async def test_what_could_not_be_written_until_its_agent_went_is_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, agent, payload = await sent(world)
    key = (await world.jobs.get(job_id)).key
    with monkeypatch.context() as patch:
        patch.setattr("server.stages.get.Get._follow", Mock(side_effect=OSError("no space")))
        agent.up = False
        world.registry.mark_down(agent, "gone")
        await world.clock.advance(DELAY_S)
    assert key not in world.get.inbox.taken()
    await agent.connect()
    agent.start(payload)
    await world.clock.advance(DELAY_S)
    assert (await history(world, job_id))[-1] is JobState.RUNNING
