"""Schedules on simulated time: which times make a job, whatever happens at them."""

from typing import Any

import pytest

from server.domain.allowances import Allowance, Allowances, OverQuota
from server.domain.errors import BadField, BundleTooLarge
from server.domain.schedules import Schedule
from server.domain.service import Service
from shared.clock import iso
from shared.principals import LOCAL
from shared.wire import JobState, Limits
from tests.model.simulation import World

HOURLY = "0 * * * *"
HOUR = 3_600.0
SERVICES = {
    "example": Service("example", runs_per_user=9, max_runs=9),
    "full": Service("full", queued_per_user=1),
    "narrow": Service("narrow", limits=Limits(disk=4)),
}


async def until(world: World, minute: int) -> None:
    """Let time pass up to so many minutes after a full hour."""
    wanted = world.steady.now() / 10**6
    wanted += (minute * 60 - wanted) % HOUR or HOUR
    while (left_s := wanted - world.steady.now() / 10**6) > 0:
        await world.clock.advance(left_s + 0.001)  # it may follow the machine's clock


async def sweep(world: World) -> None:
    await world.schedules.run_once()
    await world.settle()


async def due(world: World, times: int = 1, ending: int = 0) -> None:
    """Sweep behind each of the next full hours; ``ending``: and end the schedule's jobs then."""
    for _ in range(times):
        await until(world, 0)
        await world.clock.advance(1.0)
        await sweep(world)
        if ending:
            await end(world, *(job.id for job in await world.jobs_of(ending) if not job.ended))


def read(world: World, number: int) -> Schedule:
    [found] = [one for one in world.schedules.page(LOCAL, None, 99, 99)[0] if one.id == number]
    return found


async def restart(world: World, away_s: float) -> None:
    await world.die()
    await world.clock.advance(away_s)
    await world.start()


async def end(world: World, *jobs: int) -> None:
    for number in jobs:
        await world.cancel(LOCAL, number, 0.0)
    await world.settle()


async def test_each_time_makes_one_job_with_what_the_upload_said(world: World) -> None:
    number = await world.schedule("ann", "example", HOURLY, tags="a,b", priority="7")
    await sweep(world)
    assert await world.jobs_of(number) == []
    await due(world, 3, ending=number)
    await sweep(world)
    jobs = await world.jobs_of(number)
    assert [(job.tags, job.priority, job.user_id) for job in jobs] == [(("a", "b"), 7, "ann")] * 3
    assert {job.submitted_by for job in jobs} == {"local"}
    schedule = read(world, number)
    assert schedule.last_job_id == jobs[-1].id
    assert schedule.message == ""
    assert iso(schedule.next_at)[14:] == "00:00.000000Z"
    assert 0 < world.schedules.until_next_s() <= HOUR
    daily = await world.schedule("ann", "example", "30 0 * * *", time_zone="Asia/Kolkata")
    first = read(world, daily).next_at
    await world.clock.advance((first - world.steady.now()) / 10**6 + 1)
    await sweep(world)
    assert read(world, daily).next_at - first == 24 * HOUR * 10**6


async def test_a_bundle_goes_with_the_last_of_a_schedule_and_its_jobs(world):
    number, unused = [await world.schedule("ann", "example", HOURLY) for _ in range(2)]
    bundle, of_none = read(world, number).bundle, read(world, unused).bundle
    await world.remove_orphans()
    assert await world.is_stored(of_none)
    used = await world.jobs.stored("ann")
    await world.schedules.delete(LOCAL, unused)
    assert not await world.is_stored(of_none)
    assert await world.jobs.stored("ann") < used
    await due(world)
    [job] = await world.jobs_of(number)
    await world.sweep()
    assert (await world.jobs.get(job.id)).state is not JobState.QUEUED
    assert await world.is_stored(bundle)
    await world.schedules.delete(LOCAL, number)
    assert await world.is_stored(bundle)
    await world.drain()
    await world.storage.delete(await world.jobs.delete(job.id))
    await due(world)
    assert await world.jobs_of(number) == []
    assert not await world.is_stored(bundle)
    assert world.schedules.page(LOCAL, None, 99, 99) == ([], None)


async def test_a_time_is_skipped_while_a_job_of_it_has_not_ended(world: World) -> None:
    number = await world.schedule("ann", "example", HOURLY)
    await due(world, 2)
    [job] = await world.jobs_of(number)
    assert read(world, number).message == f"skipped: job {job.id} has not ended"
    await end(world, job.id)
    await due(world)
    assert len(await world.jobs_of(number)) == 2
    assert read(world, number).message == ""


async def test_times_of_a_downtime_make_one_job(world: World) -> None:
    number = await world.schedule("ann", "example", HOURLY)
    await until(world, 30)
    await restart(world, 5 * HOUR)
    await sweep(world)
    [job] = await world.jobs_of(number)
    await end(world, job.id)
    await sweep(world)
    assert len(await world.jobs_of(number)) == 1
    await due(world)
    assert len(await world.jobs_of(number)) == 2


async def test_each_job_is_an_array_with_its_gather_where_the_upload_is(world: World) -> None:
    await world.schedule("ann", "example", HOURLY, gather=True, array="0-2")
    await due(world)
    rows = world.database._run("SELECT total, has_gather FROM batches", None)
    assert [(row["total"], row["has_gather"]) for row in rows] == [(3, 1)]


async def test_a_rehearsal_makes_no_jobs_of_schedules(world: World) -> None:
    number = await world.schedule("ann", "example", HOURLY)
    await restart(world, 1.0)
    world.schedules._is_rehearsal = True
    await due(world, 2)
    assert await world.jobs_of(number) == []


@pytest.mark.parametrize("jump", [90 * 86_400.0, -90 * 86_400.0])
async def test_a_clock_that_jumps_makes_no_job_and_leaves_none_out(world: World, jump) -> None:
    number = await world.schedule("ann", "example", HOURLY)
    await due(world, ending=number)
    world.clock.jump(jump)
    await due(world, 3, ending=number)
    assert len(await world.jobs_of(number)) == 4


async def test_a_time_from_a_clock_that_was_ahead_is_corrected_at_the_start(world: World) -> None:
    number = await world.schedule("ann", "example", HOURLY)
    await sweep(world)
    world.database._run("UPDATE schedules SET next_at = next_at * 2", None)
    await restart(world, 1.0)
    await sweep(world)
    await due(world)
    assert len(await world.jobs_of(number)) == 1


async def test_a_schedule_that_can_make_no_job_says_why_and_goes_on(world: World) -> None:
    number = await world.schedule("ann", "example", HOURLY, timeout="30m")
    example = world.services.pop("example")
    await due(world)
    assert "Invalid service 'example'" in read(world, number).message
    world.services["example"] = example
    await due(world)
    assert len(await world.jobs_of(number)) == 1
    await world.upload("bob", "full")
    full = await world.schedule("bob", "full", HOURLY)
    await due(world)
    assert "which is the most the service allows" in read(world, full).message


async def test_what_a_user_may_not_store_is_refused_and_leaves_nothing(world: World) -> None:
    refusals: list[tuple[type[Exception], Allowance, dict[str, str]]] = [
        (BadField, Allowance(), {"timeout": "soon"}),
        (BundleTooLarge, Allowance(), {"service": "narrow"}),
        (OverQuota, Allowance(stored=20, uploaded=99), {}),
        (OverQuota, Allowance(uploaded=20), {}),
    ]
    given: dict[str, Any] = {"service": "example", "cron": HOURLY}
    world.settings.allowances = Allowances(Allowance(uploaded=99))
    for number in range(2):
        await world.schedule("ann", **given, name=f"there {number}")
    for refusal, allowance, fields in refusals:
        world.settings.allowances = Allowances(allowance)
        with pytest.raises(refusal):
            await world.schedule("ann", **given | fields)
    await world.schedule("bob", **given)
    await world.remove_orphans()
    assert not world.leftovers()
