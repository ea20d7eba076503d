"""Numbers and waits that requests ask for."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from server.api import params
from server.api.context import Context
from server.api.problems import Refusal
from server.domain.errors import BadField, NoSuchJob
from server.domain.jobs import Job
from server.loops.wakeups import Wakeups
from shared.wire import JobState
from tests.support.jobs import job
from tests.support.simclock import SimClock

S = JobState


def request(query: str = "", job_id: str = "7") -> web.Request:
    return make_mocked_request("GET", f"/x?{query}", match_info={"id": job_id})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0.0), ("wait=1.5", 1.5), ("wait=30s", 30.0), ("wait=120", 120.0), ("wait=1e9", 120.0)],
)
def test_seconds_are_numbers_up_to_two_minutes(text, seconds) -> None:
    assert params.seconds(request(text), "wait") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "-0.1s", "1" * 33, "1m"])
def test_what_is_no_time_is_refused_by_its_name(text) -> None:
    with pytest.raises(BadField) as caught:
        params.seconds(request(f"wait={text}"), "wait")
    assert (caught.value.field, caught.value.code) == ("wait", "invalid_wait")


@pytest.mark.parametrize(("text", "number"), [("", 50), ("n=1", 1), ("n=500", 500), ("n=07", 7)])
def test_whole_numbers_within_bounds(text, number) -> None:
    assert params.whole(request(text), "n", 50, 1, 500) == number


@pytest.mark.parametrize("text", ["0", "501", "-1", "1.0", "x", "", "9" * 40])
def test_other_numbers_are_refused_by_name_and_bounds(text) -> None:
    with pytest.raises(BadField, match="n should be 1 to 500") as caught:
        params.whole(request(f"n={text}"), "n", 50, 1, 500)
    assert caught.value.code == "invalid_n"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", str(2**63), "9" * 5_000])
def test_what_is_no_job_is_not_found(text) -> None:
    with pytest.raises(Refusal) as caught:
        params.job_id(request(job_id=text))
    assert (caught.value.status, caught.value.code) == (404, "job_not_found")
    assert len(str(caught.value)) < 100
    assert params.job_id(request(job_id=str(2**63 - 1))) == 2**63 - 1


class World:
    """One job, and who waits for it."""

    def __init__(self) -> None:
        self.clock, self.wakeups = SimClock(), Wakeups()
        self.job = job(state=S.SUBMITTED)
        self.looked = 0
        context: Any = SimpleNamespace(
            jobs=self, clock=self.clock, watch=self.wakeups, waiting=lambda _: nullcontext()
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
        waits = params.wait_for_job(request(query), self.context, until_ended=until_ended)
        task = asyncio.create_task(waits)
        await self.clock.settle()
        return task


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("query", ["", "wait=0", "wait=30&seen=Queued"])
async def test_who_need_not_wait_is_told_at_once(world, query) -> None:
    task = await world.waiting(query)
    assert task.done()
    assert (await task).state is S.SUBMITTED


async def test_a_wait_ends_when_the_state_is_not_the_one_seen(world) -> None:
    task = await world.waiting("wait=30&seen=Submitted")
    assert not task.done()
    world.becomes(S.RUNNING)
    await world.clock.settle()
    assert (await task).state is S.RUNNING


async def test_a_wait_for_the_end_sleeps_through_other_states_and_its_time_runs_on(world) -> None:
    task = await world.waiting("wait=30&seen=Queued", until_ended=True)
    await world.clock.advance(20.0)
    world.becomes(S.RUNNING)
    await world.clock.advance(9.0)
    assert not task.done()
    await world.clock.advance(2.0)
    assert (await task).state is S.RUNNING
    assert world.looked == 3
    task = await world.waiting("wait=30", until_ended=True)
    world.becomes(S.COMPLETED)
    await world.clock.settle()
    assert (await task).state is S.COMPLETED


async def test_a_wait_ends_when_the_server_stops(world) -> None:
    task = await world.waiting("wait=30&seen=Submitted")
    world.wakeups.close()
    await world.clock.settle()
    assert task.done()
    await task


async def test_nobody_waits_for_a_job_that_is_not_there(world) -> None:
    with pytest.raises(NoSuchJob):
        await params.wait_for_job(request("wait=30", "8"), world.context, until_ended=True)
