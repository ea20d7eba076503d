"""kill -9 at every store, file and network step of the server: nothing lost, nothing twice."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from server.domain.retry import RetryPolicy
from server.domain.service import Service
from server.store import batches, retention
from server.store.pages import Filter
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState, RetryLater
from tests.model.inline_database import CrashPoint
from tests.model.simulation import World, each_crash, end_in_each_way
from tests.model.test_job_model import STEPS

SERVICES = {
    "example": Service("example", runs_per_user=2, max_runs=3, expires_after_s=100.0),
    "retried": Service(
        "retried",
        retry=RetryPolicy(1, (5.0,), retry_on=frozenset({"exit:4"})),
        on_shutdown="resubmit",
        dead_letter=True,
    ),
}
MANY = {"example": Service("example", runs_per_user=99, max_runs=99, expires_after_s=100.0)}


async def _scenario(world: World) -> None:
    """Each stage at least once: a success, a failure, an interruption, a cancel, an expiry."""
    await world.start()
    first = await world.upload("ann", "example")
    await world.upload("bob", "example", key="k")
    await world.upload("ann", "example")
    await world.send_and_start()
    end_in_each_way(world.payloads(PayloadState.RUNNING))
    await world.settle()
    last = await world.upload("cy", "example")
    await world.sweep()
    job = await world.cancel(LOCAL, last, 0.0)
    await world.settle()
    if (await world.jobs.get(last)).state is JobState.CANCELLED:
        world.cancelled.add(job.id)
    await world.clock.advance(50.0)
    await world.clean.run_once()
    assert (await world.jobs.get(first)).ended
    await world.clock.advance(60.0)
    await world.clean.run_once()


async def _batches(world: World) -> None:
    """Children are made, fail, are cancelled with their parent, left by a job, and gathered."""
    await world.start()
    await world.upload("ann", "example", fan_out=True, gather=True)
    await world.upload("bob", "example", array="0-2", max_parallel="1")
    cancelled = await world.upload("cy", "example", array="0-2")
    for number in range(5):
        await world.batches.run_once()
        await world.sweep()
        if number == 1:
            await world.cancel(LOCAL, cancelled, 0.0)
        for agent, payload in world.payloads(PayloadState.PREPARED):
            agent.start(payload)
            agent.exit(payload, 0 if payload.key.job_id % 5 else 3)
        await world.settle()


async def _requests(world: World) -> None:
    """A retry, another one later, a shutdown, a dead letter that is retried by hand, a delete."""
    await world.start()
    job_id = await world.upload("ann", "retried")
    removed = await world.upload("bob", "retried")
    world.deleted.add(removed)
    codes = iter((4, 75, None, 3, 0))
    for run in (1, 2):
        while not (job := await world.jobs.get(job_id)).ended:
            await world.clock.advance(60.0)
            await world.sweep()
            prepared = world.payloads(PayloadState.PREPARED)
            agent, payload = next(one for one in prepared if one[1].key.job_id == job_id)
            agent.start(payload)
            await world.settle()
            code = next(codes)
            if code is None:
                agent.shut_down()
            else:
                agent.exit(payload, code, RetryLater() if code == 75 else None)
            await world.settle()
        if run == 1:
            assert job.dead_letter
            await world.delete.forget(LOCAL, removed)
            await world.settle()
            await world.clean.run_once()
            await world.retry(LOCAL, job_id)
    job = await world.jobs.get(job_id)
    assert (job.state, job.run, job.attempt) == (JobState.COMPLETED, 2, 5)


async def _retried_batch(world: World) -> None:
    """A parent that failed is retried and completes, and goes with its children, one at a time."""
    await world.start()
    parent = await world.upload("ann", "example", array="0-2")
    for code in (3, 0):
        for _ in range(4):
            await world.batches.run_once()
            await world.sweep()
            for agent, payload in world.payloads(PayloadState.PREPARED):
                agent.start(payload)
                agent.exit(payload, code, RetryLater() if code == 75 else None)
            await world.settle()
        if code:
            await world.retry(LOCAL, parent)
    assert (await world.jobs.get(parent)).state is JobState.COMPLETED
    await world.clock.advance(200.0)
    for _ in range(6):
        await world.clean.run_once()


def _world(folder: Path, crash_point: CrashPoint, **how: Any) -> World:
    return World(folder, **{"services": SERVICES} | how, crash_point=crash_point)


async def _all_end_and_nothing_is_left(world: World, crashed_at: int | None) -> None:
    await world.check()
    await world.drain()
    await world.check()
    await world.remove_orphans()
    assert not world.leftovers(), f"after a crash at step {crashed_at}"


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("scenario", [_scenario, _batches, _requests])
async def test_a_crash_at_any_step_loses_no_job_and_runs_none_twice(tmp_path, scenario, first):
    check, world_of = _all_end_and_nothing_is_left, partial(_world, talkative=True)
    steps = await each_crash(tmp_path, world_of, scenario, check, first=first, every=len(STEPS))
    assert steps > 80, "the scenario became too short to prove anything"


@pytest.mark.parametrize("first", STEPS)
async def test_a_crash_between_the_children_of_a_parent_leaves_none_behind(
    tmp_path, first, monkeypatch
):
    """They are queued again, and expire, with it, some at a time."""
    monkeypatch.setattr(batches, "_AT_ONCE", 1)
    monkeypatch.setattr(retention, "_CHILDREN_AT_ONCE", 1)

    async def check(world: World, crashed_at: int | None) -> None:
        await _all_end_and_nothing_is_left(world, crashed_at)
        for _ in range(8):
            await world.batches.run_once()  # of an upload that was not answered
            await world.clock.advance(101.0)
            await world.clean.run_once()
        found = world.database._run("SELECT state, run FROM jobs", None)
        assert {row["state"] for row in found} <= {"Cleaned"}, f"after a crash at step {crashed_at}"
        assert len({row["run"] for row in found}) <= 1

    steps = await each_crash(tmp_path, _world, _retried_batch, check, first=first, every=len(STEPS))
    assert steps > 60, "the scenario became too short to prove anything"


async def _many_at_once(world: World) -> None:
    """Jobs of one bundle: ordered, fetched and acknowledged together."""
    await world.start()
    for number in range(13):
        await world.upload(f"u{number}", "example", same="the same")
    await world.send_and_start()
    assert any(len(agent.payloads) > 2 for agent in world.agents)
    for agent, payload in world.payloads(PayloadState.RUNNING):
        agent.end(payload, PayloadState.COMPLETED)
    await world.settle()
    for seconds in (50.0, 60.0):
        await world.clock.advance(seconds)
        await world.clean.run_once()


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("fault", ["", "reply_lost"])
async def test_a_crash_at_any_step_of_many_at_once_loses_none(tmp_path, fault, first):
    async def story(world: World) -> None:
        for agent in world.agents:
            agent.faults += [fault] * 3 if fault else []
        try:
            await _many_at_once(world)
        except ValueError:
            assert fault or world.crash_point.crashed

    check, slots = _all_end_and_nothing_is_left, {"north": 1, "south": 12}
    world_of = partial(_world, services=MANY, slots=slots, bulk=True)
    steps = await each_crash(tmp_path, world_of, story, check, first=first, every=len(STEPS))
    assert steps > (20 if fault else 60), "the scenario became too short to prove anything"


async def test_an_upload_that_was_not_answered_may_be_repeated_under_its_key(tmp_path):
    async def story(world: World) -> None:
        await world.start()
        await world.upload("ann", "example", key="once")

    async def check(world: World, crashed_at: int | None) -> None:
        await world.upload("ann", "example", key="once")
        await world.remove_orphans()
        assert len(world.database._run("SELECT id FROM jobs", None)) == 1
        assert not world.leftovers(), f"after a crash at step {crashed_at}"

    assert await each_crash(tmp_path, _world, story, check) > 5


async def _scheduled(world: World) -> None:
    """Three times of a schedule; at the second one the job of the first has not ended."""
    await world.start()
    number = await world.schedule("ann", "example", "0 * * * *")
    await world.schedules.run_once()
    for hour in range(3):
        if hour == 2:
            await world.cancel(LOCAL, (await world.jobs_of(number))[0].id, 0.0)
        await world.clock.advance(3_600.0)
        await world.schedules.run_once()
        await world.settle()
    await world.schedules.delete(LOCAL, number)


async def test_a_crash_at_any_step_of_a_schedule_makes_no_job_twice(tmp_path: Path) -> None:
    async def check(world: World, crashed_at: int | None) -> None:
        await world.schedules.run_once()
        await world.settle()
        jobs, _ = await world.jobs.page(Filter(), None, 99)
        hours = [job.created_at // (3_600 * 10**6) for job in jobs]
        assert len(set(hours)) == len(hours), f"twice in an hour, crashed at step {crashed_at}"
        assert sum(not job.ended for job in jobs) <= 1
        await world.remove_orphans()
        assert not world.leftovers(), f"after a crash at step {crashed_at}"
        rows = world.database._run("SELECT sum(refs) AS refs FROM bundles", None)
        schedules, _ = world.schedules.page(LOCAL, None, 99, 9)
        assert (rows[0]["refs"] or 0) == len(jobs) + len(schedules)
        if crashed_at is None:
            assert (len(jobs), schedules) == (2, [])

    steps = await each_crash(tmp_path, _world, _scheduled, check)
    assert steps > 20, "the scenario became too short to prove anything"
