"""What the server promises, whatever fails in between.

job-orchestrator breaks each of these promises. Those of the agent are in
``tests/process/test_agent_guarantees.py``, those seen only between our server and
job-orchestrator's client in ``test_reference_client.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.domain.errors import AlreadyEnded
from server.domain.jobs import FileKind
from server.domain.service import Service
from server.store.migrations import MIGRATIONS
from shared.files import durable
from shared.principals import LOCAL
from shared.sqlite.database import Database
from shared.wire import JobState, PayloadState, Reason
from tests.kit.inline_database import CrashPoint, SimulatedCrash
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


async def _restart(world: World) -> None:
    await world.die()
    world.crash_point = CrashPoint()
    with world.inline():
        await world.start()
        await world.send.run_once()
        await world.settle()


async def test_a_crash_in_processing_keeps_neither_the_job_nor_its_slot(world):
    await world.start()
    job_id = await world.upload("ann", "example")
    world.agents[0].faults = ["slow"]
    await world.send.run_once()
    await world.settle()
    assert await _state(world, job_id) is JobState.PROCESSING
    await _restart(world)
    await world.clock.advance(1.0)
    await world.drain()
    assert await _state(world, job_id) is JobState.COMPLETED


async def test_unknown_is_asked_again(world):
    job_id = await _sent(world)
    agent = world.registry.named("north")
    agent.drop()
    await world.clock.advance(70.0)
    await world.poll.run_once()
    assert await _state(world, job_id) is JobState.UNKNOWN
    await agent.connect()
    await world.settle()
    assert await _state(world, job_id) is JobState.RUNNING


@pytest.mark.parametrize("steps", range(1, 12))
async def test_a_crash_around_the_agents_answer_loses_nothing(world, steps):
    await world.start()
    job_id = await world.upload("ann", "example")
    world.crash_point.at = world.crash_point.steps + steps
    try:
        await world.send.run_once()
        await world.settle()
    except SimulatedCrash:
        pass
    await _restart(world)
    await world.drain()
    assert await _state(world, job_id) is JobState.COMPLETED
    assert world.violations == []


async def test_a_late_report_does_not_overwrite_a_cancel(world):
    job_id = await _sent(world)
    (payload,) = world.agents[0].payloads.values()
    late = payload.doc(world.clock.now()).model_copy(update={"status": PayloadState.COMPLETED})
    assert (await world.cancel(LOCAL, job_id, 5.0)).state is JobState.CANCELLED
    world.get.on_payload(world.agents[0], late)
    await world.settle()
    assert await _state(world, job_id) is JobState.CANCELLED


async def test_a_queued_job_can_be_cancelled_and_never_starts(world):
    await world.start()
    job_id = await world.upload("ann", "example")
    assert (await world.cancel(LOCAL, job_id, 5.0)).state is JobState.CANCELLED
    await world.send.run_once()
    await world.settle()
    assert not any(agent.payloads for agent in world.agents)


async def test_a_completed_job_cannot_be_cancelled_and_keeps_its_result(world):
    job_id = await _sent(world)
    (payload,) = world.agents[0].payloads.values()
    world.agents[0].end(payload, PayloadState.COMPLETED)
    await world.settle()
    with pytest.raises(AlreadyEnded):
        await world.cancel(LOCAL, job_id, 5.0)
    job = await world.jobs.get(job_id)
    assert job.state is JobState.COMPLETED
    assert job.result is not None
    assert world.stored(FileKind.RESULT, job.result.file).exists()


def test_a_sealed_file_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    steps: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        steps.append(f"{name} with {sorted(path.name for path in tmp_path.iterdir())}")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "staged").write_bytes(b"x")
    durable.replace(tmp_path / "staged", tmp_path / "final")
    assert steps == ["staged with ['staged']", f"{tmp_path.name} with ['final']"]


async def test_a_commit_is_on_the_disk(tmp_path):
    database = await Database.open(tmp_path / "x.sqlite", MIGRATIONS)
    try:
        found = await database._writer.rows("PRAGMA synchronous")
        assert found[0][0] == 2  # FULL
    finally:
        await database.close()


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


@pytest.mark.parametrize("fault", ["unreachable", "lost", "reply_lost", "cut", "busy", "broken"])
async def test_a_failed_send_is_tried_again_and_leaves_no_second_run(world, fault):
    await world.start()
    job_id = await world.upload("ann", "example")
    world.agents[0].faults = [fault]
    await world.send.run_once()
    await world.settle()
    await world.drain()
    assert await _state(world, job_id) is JobState.COMPLETED
    assert world.violations == []


async def test_a_slow_agent_holds_up_nobody_else(world):
    await world.start()
    first, second = await world.upload("ann", "example"), await world.upload("bob", "example")
    world.agents[0].faults = ["slow"]
    await world.send.run_once()
    await world.settle()
    states = {await _state(world, first), await _state(world, second)}
    assert states == {JobState.PROCESSING, JobState.SUBMITTED}


async def test_a_failure_that_the_agent_reports_reaches_the_user_with_its_result(world):
    job_id = await _sent(world)
    (payload,) = world.agents[0].payloads.values()
    world.agents[0].end(payload, PayloadState.FAILED, Reason.EXIT_CODE)
    await world.settle()
    job = await world.jobs.get(job_id)
    assert (job.state, job.reason, job.exit_code) == (JobState.FAILED, Reason.EXIT_CODE, 3)
    assert job.result is not None


async def test_what_a_cancelled_job_left_is_kept(world):
    job_id = await _sent(world)
    await world.cancel(LOCAL, job_id, 5.0)
    await world.settle()
    job: Any = await world.jobs.get(job_id)
    assert job.result is not None
