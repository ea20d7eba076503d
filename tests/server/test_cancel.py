"""Cancelling a job that moves meanwhile, on simulated time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from server.domain.errors import AlreadyEnded
from server.domain.jobs import Job, Move
from server.domain.service import Service
from shared.principals import LOCAL
from shared.wire import JobState, Reason
from tests.kit.simulation import World


async def test_a_job_that_ends_just_after_it_was_read_is_answered_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, {"example": Service("example")})
    with world.inline():
        await world.start()
        number = await world.upload("ann", "example")
        get = world.jobs.get

        async def ends_after_the_read(job_id: int) -> Job:
            job = await get(job_id)
            if world.cancel._tasks and not job.ended:
                changes = {"ended_at": world.steady.now()}
                failed = Move(
                    *(job_id, job.attempt, JobState.QUEUED, JobState.FAILED, world.steady.now()),
                    *("waited too long", Reason.QUEUE_TIMEOUT),
                    changes=changes,
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
        await world.die()
