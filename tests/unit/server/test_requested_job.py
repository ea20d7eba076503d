"""The job that a path names, and waits for it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from server.domain.errors import NoSuchJob
from server.domain.jobs import Job
from server.http.context import Context
from server.http.requested_job import wait_for_job
from server.loops.wakeups import JobWakeups
from shared.http.authentication import PRINCIPAL
from shared.principals import LOCAL, Principal, Role
from shared.wire import JobState
from tests.kit.clock import SimClock
from tests.kit.jobs import job


def request(query: str = "", job_id: str = "7") -> web.Request:
    made = make_mocked_request("GET", f"/x?{query}", match_info={"id": job_id})
    made[PRINCIPAL] = LOCAL
    return made


class World:
    """One job, and who waits for it."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.wakeups = JobWakeups(self.clock)
        self.job = job(state=JobState.SUBMITTED)
        self.looked = 0
        context: Any = SimpleNamespace(
            jobs=self,
            clock=self.clock,
            watch=self.wakeups,
            waiting=lambda _: nullcontext(),
            still_accepted=lambda _: True,
        )
        self.context = cast("Context", context)

    async def get(self, job_id: int) -> Job:
        self.looked += 1
        if job_id != self.job.id:
            raise NoSuchJob(job_id)
        return self.job

    def becomes(self, state: JobState) -> None:
        self.job = job(state=state)
        self.wakeups.changed(self.job)

    async def waiting(self, query: str, *, until_ended: bool = False) -> asyncio.Task[Job]:
        waits = wait_for_job(request(query), self.context, until_ended=until_ended)
        task = asyncio.create_task(waits)
        await self.clock.settle()
        return task


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("query", ["", "wait=0", "wait=30&seen=Queued"])
async def test_a_request_that_need_not_wait_is_answered_at_once(world, query) -> None:
    task = await world.waiting(query)
    assert task.done()
    assert (await task).state is JobState.SUBMITTED


async def test_a_wait_ends_when_the_state_is_not_the_one_seen(world) -> None:
    task = await world.waiting("wait=30&seen=Submitted")
    assert not task.done()
    world.becomes(JobState.RUNNING)
    await world.clock.settle()
    assert (await task).state is JobState.RUNNING


async def test_a_wait_for_the_end_sleeps_through_other_states_and_its_time_runs_on(world) -> None:
    task = await world.waiting("wait=30&seen=Queued", until_ended=True)
    await world.clock.advance(20.0)
    world.becomes(JobState.RUNNING)
    await world.clock.advance(9.0)
    assert not task.done()
    await world.clock.advance(2.0)
    assert (await task).state is JobState.RUNNING
    assert world.looked == 2  # before the wait, and behind it
    task = await world.waiting("wait=30", until_ended=True)
    world.becomes(JobState.COMPLETED)
    await world.clock.settle()
    assert (await task).state is JobState.COMPLETED
    assert world.looked == 3  # before it: its end was handed over


async def test_a_job_that_ended_and_was_retried_meanwhile_is_looked_up(world) -> None:
    task = await world.waiting("wait=30", until_ended=True)
    world.becomes(JobState.FAILED)
    world.becomes(JobState.QUEUED)
    await world.clock.settle()
    assert not task.done()
    world.becomes(JobState.COMPLETED)
    await world.clock.settle()
    assert (await task).state is JobState.COMPLETED


async def test_a_job_that_moved_a_moment_ago_is_not_looked_up_before_the_wait(world) -> None:
    world.becomes(JobState.RUNNING)
    task = await world.waiting("wait=30", until_ended=True)
    assert world.looked == 0
    world.becomes(JobState.COMPLETED)
    await world.clock.settle()
    assert (await task).state is JobState.COMPLETED
    assert world.looked == 0
    assert (await (await world.waiting("wait=30"))).state is JobState.COMPLETED
    assert world.looked == 1  # it has ended: what is known of it is in the store


async def test_a_move_that_nobody_was_told_of_is_found_by_who_asks_later(world) -> None:
    world.becomes(JobState.RUNNING)
    world.job = job(state=JobState.COMPLETED)
    await world.clock.advance(2.0)
    assert (await (await world.waiting("wait=30"))).state is JobState.COMPLETED


async def test_what_a_job_said_since_its_last_move_is_in_the_answer(world) -> None:
    world.becomes(JobState.RUNNING)
    task = await world.waiting("wait=30", until_ended=True)
    world.job = job(state=JobState.RUNNING, message="step 2")  # no move
    await world.clock.advance(31.0)
    assert (await task).message == "step 2"


async def test_parents_and_children_are_looked_up(world) -> None:
    """Their changes may be told later than those that followed."""
    world.job = job(state=JobState.RUNNING, parent_id=1)
    world.wakeups.changed(world.job)
    world.job = job(state=JobState.COMPLETED, parent_id=1)
    task = await world.waiting("wait=30", until_ended=True)
    assert task.done()
    assert (await task).state is JobState.COMPLETED


async def test_the_end_of_a_job_is_handed_to_those_only_who_may_see_it(world) -> None:
    asks = request("wait=30")
    world.job = job(state=JobState.SUBMITTED, user_id="1")
    asks[PRINCIPAL] = Principal("ann", Role.USER, user_id="1")
    task = asyncio.create_task(wait_for_job(asks, world.context, until_ended=True))
    await world.clock.settle()
    assert not task.done()
    world.job = job(state=JobState.COMPLETED, user_id="2")
    world.wakeups.changed(world.job)
    await world.clock.settle()
    with pytest.raises(NoSuchJob):
        await task


async def test_a_wait_ends_when_the_server_stops(world) -> None:
    task = await world.waiting("wait=30&seen=Submitted")
    world.wakeups.close()
    await world.clock.settle()
    assert task.done()
    await task


async def test_nobody_waits_for_a_job_that_is_not_there(world) -> None:
    with pytest.raises(NoSuchJob):
        await wait_for_job(request("wait=30", "8"), world.context, until_ended=True)
