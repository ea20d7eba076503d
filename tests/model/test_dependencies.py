"""Jobs that wait for others, whatever goes wrong: none starts too early, none waits for ever."""

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from server.domain.errors import BadField
from server.domain.jobs import Hold, Job
from server.domain.service import Service
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState, Reason
from tests.model.inline_database import CrashPoint
from tests.model.simulation import World, each_crash, end_in_each_way
from tests.model.test_job_model import (
    HOW,
    NUMBER,
    SERVICE,
    STEPS,
    TROUBLE,
    RetriedModel,
    Trouble,
    retried,
)


async def check(world: World) -> None:
    """What must hold at every moment, of jobs that wait for others too."""
    await world.check()
    found = _dependencies(world)
    for job_id in world.acknowledged:
        job = await world.jobs.get(job_id)
        open_ones = {on for on in job.after if found[job_id, on] != "met"}
        for on_id in job.after:
            on = await world.jobs.get(on_id)
            # A job that has failed for it does not follow a later retry.
            met = "met" if await _has(world, on, JobState.COMPLETED) else "waiting"
            assert found[job_id, on_id] in (met, "failed"), (job, on)
            assert found[job_id, on_id] == met or await _has(world, on, *BROKEN), (job, on)
        if job.state is JobState.QUEUED:
            assert (job.hold is Hold.DEPENDENCY) == bool(open_ones), job
        elif open_ones:
            assert job.state in (JobState.FAILED, JobState.CANCELLED, JobState.CLEANED), job
            assert job.attempt == 0, f"job {job_id} was started before {open_ones} had completed"


def _dependencies(world: World) -> dict[tuple[int, int], str]:
    rows = world.database._run("SELECT * FROM dependencies", None)
    return {(row["job_id"], row["on_id"]): row["state"] for row in rows}


async def _has(world: World, on: Job, *states: JobState) -> bool:
    """Whether it was ever in one of these."""
    return any(event.state in states for event in await world.jobs.events(on.id) if event.is_move)


BROKEN = (JobState.FAILED, JobState.CANCELLED)


async def ended_as_they_must(world: World) -> None:
    """Once all have ended."""
    for job_id in world.acknowledged:
        job = await world.jobs.get(job_id)
        after = [await world.jobs.get(on) for on in job.after]
        broken = [on for on in after if not await _has(world, on, JobState.COMPLETED)]
        if job.state is JobState.FAILED and job.reason is Reason.DEPENDENCY_FAILED:
            assert "failed" in {_dependencies(world)[job_id, on] for on in job.after}
        elif broken:
            assert job.state in (JobState.CANCELLED, JobState.CLEANED), job


class DependencyModel(RetriedModel):
    """Uploads that wait for earlier ones, and retries by hand, among all that goes wrong."""

    more_stages = ("dependencies",)

    @rule(jobs=st.lists(NUMBER, min_size=1, max_size=3), service=SERVICE, trouble=TROUBLE)
    def upload_after(self, jobs: list[int], service: str, trouble: Trouble) -> None:
        after = ",".join(str(self.some_job(number)) for number in jobs)

        async def upload() -> None:
            users = {(await self.world.jobs.get(int(one))).user_id for one in after.split(",")}
            try:
                await self.world.upload(min(users), service, after=after)
            except BadField:
                assert len(users) > 1

        if self.world.acknowledged:
            self.expect(trouble)
            self.run(upload())

    async def promises(self) -> None:
        await check(self.world)

    async def ended(self) -> None:
        await ended_as_they_must(self.world)


def test_waiting_jobs_keep_every_promise_whatever_goes_wrong() -> None:
    run_state_machine_as_test(DependencyModel, settings=HOW)


async def _scenario(world: World) -> None:
    """A diamond of which one side fails, is retried by hand, and completes."""
    await world.start()
    first = await world.upload("ann", "s")
    left = await world.upload("ann", "s", after=str(first))
    right = await world.upload("ann", "s", after=str(first))
    last = await world.upload("ann", "s", after=f"{left},{right}")
    for _ in range(2):
        await world.send_and_start()
        end_in_each_way(world.payloads(PayloadState.RUNNING))
        await world.settle()
    failed = await world.jobs.get(left)
    if failed.state is JobState.COMPLETED:
        failed = await world.jobs.get(right)
    await world.dependencies.run_once()
    await world.dependencies.run_once()
    assert (await world.jobs.get(last)).reason is Reason.DEPENDENCY_FAILED
    for job_id in (failed.id, last):
        await retried(world, job_id)
    await world.cancel(LOCAL, failed.id, 0.0)
    await world.settle()


@pytest.mark.parametrize("first", STEPS)
async def test_a_crash_at_any_step_starts_none_too_early_and_leaves_none_waiting(tmp_path, first):
    def world_of(folder: Path, crash_point: CrashPoint) -> World:
        return World(folder, {"s": Service("s", runs_per_user=3, max_runs=3)}, crash_point)

    async def checked(world: World, crashed_at: int | None) -> None:
        await check(world)
        await world.drain()
        await check(world)
        await ended_as_they_must(world)

    steps = await each_crash(tmp_path, world_of, _scenario, checked, first=first, every=len(STEPS))
    assert steps > 40, "the scenario became too short to prove anything"
