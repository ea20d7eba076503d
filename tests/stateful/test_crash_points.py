"""kill -9 at every store, file and network step of the server: nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from server.ports import Filter
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState, Reason
from tests.support.inline_database import CrashPoint, SimulatedCrash
from tests.support.sim_agent import end_in_each_way
from tests.support.simulation import World

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
    await world.send.run_once()
    await world.settle()
    for agent in world.agents:
        for payload in list(agent.payloads.values()):
            agent.start(payload)
    await world.settle()
    end_in_each_way(world.agents)
    await world.settle()
    last = await world.upload("cy", "example")
    await world.send.run_once()
    await world.settle()
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
        await world.send.run_once()
        await world.settle()
        if number == 1:
            await world.cancel(LOCAL, cancelled, 0.0)
        for agent in world.agents:
            for payload in list(agent.payloads.values()):
                if payload.status is PayloadState.PREPARED:
                    agent.start(payload)
                    if payload.key.job_id % 5 == 0:
                        agent.end(payload, PayloadState.FAILED, Reason.EXIT_CODE)
                    else:
                        agent.end(payload, PayloadState.COMPLETED)
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
            await world.send.run_once()
            await world.settle()
            agent, payload = next(
                (agent, payload)
                for agent in world.agents
                for payload in agent.payloads.values()
                if payload.key.job_id == job_id and payload.status is PayloadState.PREPARED
            )
            agent.start(payload)
            await world.settle()
            code = next(codes)
            if code is None:
                agent.shut_down()
            else:
                agent.exit(payload, code)
            await world.settle()
        if run == 1:
            assert job.dead_letter
            await world.delete(LOCAL, removed, 0.0)
            await world.settle()
            await world.clean.run_once()
            await world.retry(LOCAL, job_id)
    job = await world.jobs.get(job_id)
    assert (job.state, job.run, job.attempt) == (JobState.COMPLETED, 2, 5)


@pytest.mark.parametrize("scenario", [_scenario, _batches, _requests])
async def test_a_crash_at_any_step_loses_no_job_and_runs_none_twice(
    tmp_path: Path, scenario: Callable[[World], Awaitable[None]]
) -> None:
    at = 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        world = World(folder, SERVICES, CrashPoint(at), talkative=True)
        with world.inline():
            crashed = False
            try:
                await scenario(world)
                await world.settle()
            except SimulatedCrash:
                crashed = True
            if hasattr(world, "cancel"):
                await world.die()
            with world.inline():
                await world.start()
                await world.check()
                await world.drain()
                await world.check()
                await world.remove_orphans()
            assert not world.leftovers(), f"after a crash at step {at}"
            world.database.close()
        if not crashed:
            break
    assert at > 80, "the scenario became too short to prove anything"


async def _many_at_once(world: World) -> None:
    """Jobs of one bundle: ordered, fetched and acknowledged together."""
    await world.start()
    for number in range(13):
        await world.upload(f"u{number}", "example", same="the same")
    await world.send.run_once()
    await world.settle()
    (agent,) = [agent for agent in world.agents if len(agent.payloads) > 2]
    for payload in list(agent.payloads.values()):
        agent.start(payload)
    for payload in list(agent.payloads.values()):
        agent.end(payload, PayloadState.COMPLETED)
    await world.settle()
    jobs = [await world.jobs.get(job_id) for job_id in world.acknowledged]
    files = [job.result.file for job in jobs if job.result is not None]
    assert len(set(files)) < len(files), "no results were stored together"
    await world.clock.advance(50.0)
    await world.clean.run_once()
    await world.clock.advance(60.0)
    await world.clean.run_once()


@pytest.mark.parametrize("fault", ["", "reply_lost"])
async def test_a_crash_at_any_step_of_many_at_once_loses_none(tmp_path: Path, fault: str) -> None:
    at, crashed = 0, True
    while crashed:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        slots = {"north": 1, "south": 12}
        world = World(folder, MANY, CrashPoint(at), slots=slots, bulk=True)
        with world.inline():
            crashed = False
            for agent in world.agents:
                agent.faults += [fault] * 3 if fault else []
            try:
                await _many_at_once(world)
                await world.settle()
            except SimulatedCrash:
                crashed = True
            except AssertionError:
                if not fault:  # it may have kept them from being stored together
                    raise
            except ValueError:
                assert fault or world.crash_point.crashed
            if hasattr(world, "cancel"):
                await world.die()
            with world.inline():
                await world.start()
                await world.check()
                await world.drain()
                await world.check()
                await world.remove_orphans()
            assert not world.leftovers(), f"after a crash at step {at}"
            world.database.close()
    assert at > (20 if fault else 60), "the scenario became too short to prove anything"


async def test_an_upload_that_was_not_answered_may_be_repeated_under_its_key(
    tmp_path: Path,
) -> None:
    at = 0
    crashed = True
    while crashed:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        world = World(folder, SERVICES, CrashPoint(at))
        with world.inline():
            try:
                await world.start()
                await world.upload("ann", "example", key="once")
                crashed = False
            except SimulatedCrash:
                pass
            if hasattr(world, "cancel"):
                await world.die()
        with world.inline():
            await world.start()
            await world.upload("ann", "example", key="once")
            await world.remove_orphans()
            rows = world.database._run("SELECT id FROM jobs", None)
            assert len(rows) == 1
            assert not world.leftovers()
            world.database.close()
    assert at > 5


async def _scheduled(world: World) -> None:
    """Two times of a schedule, the second of which replaces the job of the first."""
    await world.start()
    number = await world.schedule("ann", "example", "0 * * * *", overlap="replace")
    await world.schedules.run_once()
    for _ in range(2):
        await world.clock.advance(3_600.0)
        for _ in range(2):
            await world.schedules.run_once()
            await world.settle()
            await world.cancel.run_once()
            await world.settle()
    await world.schedules.delete(LOCAL, number)


async def test_a_crash_at_any_step_of_a_schedule_makes_no_job_twice(tmp_path: Path) -> None:
    at, crashed = 0, True
    while crashed:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        world = World(folder, SERVICES, CrashPoint(at))
        with world.inline():
            try:
                await _scheduled(world)
                crashed = False
            except SimulatedCrash:
                pass
            if hasattr(world, "cancel"):
                await world.die()
        with world.inline():
            await world.start()
            for _ in range(2):
                await world.schedules.run_once()
                await world.settle()
                await world.cancel.run_once()
                await world.settle()
            jobs, _ = await world.jobs.page(Filter(), None, 99)
            hours = [job.created_at // (3_600 * 10**6) for job in jobs]
            assert len(set(hours)) == len(hours), f"twice in an hour, after a crash at step {at}"
            assert sum(not job.ended for job in jobs) <= 1
            await world.remove_orphans()
            assert not world.leftovers(), f"after a crash at step {at}"
            rows = world.database._run("SELECT sum(refs) AS refs FROM bundles", None)
            schedules, _ = await world.schedules.page(LOCAL, None, None, 9)
            assert (rows[0]["refs"] or 0) == len(jobs) + len(schedules)
            if not crashed:
                assert (len(jobs), schedules) == (2, [])
            world.database.close()
    assert at > 20, "the scenario became too short to prove anything"
