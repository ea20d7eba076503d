"""What the server promises, whatever fails in between.

job-orchestrator breaks each of these promises. Those of the agent are in
``tests/processes/test_agent.py``, those seen only between our server and
job-orchestrator's client in ``test_reference_client.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.domain.service import Service
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState
from tests.kit.simulation import World

SERVICES = {"example": Service("example", runs_per_user=2, max_runs=2, expires_after_s=100.0)}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, SERVICES)
    with world.inline():
        yield world
    if hasattr(world, "database"):
        world.database.close()


async def _state(world: World, job_id: int) -> JobState:
    return (await world.jobs.get(job_id)).state


async def _sent(world: World) -> int:
    """A job that an agent runs."""
    await world.start()
    job_id = await world.upload("ann", "example")
    await world.send.run_once()
    await world.settle()
    for agent in world.agents:
        for payload in agent.payloads.values():
            agent.start(payload)
    await world.settle()
    assert await _state(world, job_id) is JobState.RUNNING
    return job_id


async def test_a_late_report_does_not_overwrite_a_cancel(world):
    job_id = await _sent(world)
    (payload,) = world.agents[0].payloads.values()
    late = payload.doc(world.clock.now()).model_copy(update={"status": PayloadState.COMPLETED})
    assert (await world.cancel(LOCAL, job_id, 5.0)).state is JobState.CANCELLED
    world.get.on_payload(world.agents[0], late)
    await world.settle()
    assert await _state(world, job_id) is JobState.CANCELLED


async def test_the_cleaner_goes_by_the_end_of_the_job_not_by_a_files_age(world):
    job_id = await _sent(world)
    for path in world.folder.rglob("*"):
        os.utime(path, (0, 0))
    await world.clock.advance(10_000.0)
    await world.clean.run_once()
    assert await _state(world, job_id) is JobState.RUNNING
    (payload,) = world.agents[0].payloads.values()
    world.agents[0].end(payload, PayloadState.COMPLETED)
    await world.settle()
    await world.clock.advance(99.0)
    await world.clean.run_once()
    assert await _state(world, job_id) is JobState.COMPLETED
    await world.clock.advance(2.0)
    await world.clean.run_once()
    assert await _state(world, job_id) is JobState.CLEANED
    assert world.leftovers() == set()
    assert not [path for path in (world.folder / "results").rglob("*") if path.is_file()]


async def test_a_slow_agent_holds_up_nobody_else(world):
    await world.start()
    first, second = await world.upload("ann", "example"), await world.upload("bob", "example")
    world.agents[0].faults = ["slow"]
    await world.send.run_once()
    await world.settle()
    states = {await _state(world, first), await _state(world, second)}
    assert states == {JobState.PROCESSING, JobState.SUBMITTED}


async def test_what_a_cancelled_job_left_is_kept(world):
    job_id = await _sent(world)
    await world.cancel(LOCAL, job_id, 5.0)
    await world.settle()
    job: Any = await world.jobs.get(job_id)
    assert job.result is not None
