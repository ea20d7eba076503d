"""When a job is sent, and why it waits; on simulated time. Clocks that jump: tests/rules."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from server.domain.choose import Recent
from server.domain.retry import RetryPolicy
from server.domain.service import Service
from server.stages import round
from server.store import queue
from server.store.queue import Claimed
from shared.clock import say_time, utc
from shared.sql import Tx
from shared.wire import JobState, PayloadState, QueueInfo, Reason, WaitReason
from tests.model.simulation import World, simulated

SERVICES = {
    "example": Service("example", runs_per_user=2, max_runs=3, queue_timeout_s=100.0),
    "patient": Service("patient", runs_per_user=1, max_runs=1),
    "again": Service("again", retry=RetryPolicy(1, (30.0,), retry_on=frozenset({"timeout"}))),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with simulated(tmp_path, SERVICES) as world:
        yield world


async def sweep(world: World, after_s: float = 0.0) -> None:
    await world.clock.advance(after_s)
    await world.sweep()


async def found(world: World, job_id: int) -> QueueInfo:
    return (await world.waiting([await world.jobs.get(job_id)]))[job_id]


async def waits(
    world: World, job_id: int, position: int, code: WaitReason, reason: str, **more: Any
) -> None:
    """That is what its document says."""
    wanted = QueueInfo(position=position, code=code, reason=reason, **more)
    assert await found(world, job_id) == wanted


async def test_a_job_with_a_start_time_waits_for_it_and_then_in_the_queue(world: World) -> None:
    await world.start()
    for agent in world.agents:
        agent.drop()
    await world.upload("ann", "patient")
    later = await world.upload("ann", "example", not_before="in 1h")
    await sweep(world)
    assert (await world.jobs.get(later)).not_before == world.steady.now() + 3_600 * 10**6
    assert world.send.until_next_s() == 3_600
    await sweep(world, 3_599.0)
    assert (await world.jobs.get(later)).not_before
    await sweep(world, 2.0)
    released = await world.jobs.get(later)
    assert (released.state, released.not_before) == (JobState.QUEUED, 0)
    await sweep(world, 97.0)
    assert await world.state(later) is JobState.QUEUED
    await sweep(world, 3.0)
    assert (await world.jobs.get(later)).reason is Reason.QUEUE_TIMEOUT


async def test_a_job_says_at_which_place_and_why_it_waits(world: World) -> None:
    await world.start()
    jobs = [await world.upload("ann", "example") for _ in range(4)]
    await waits(world, jobs[0], 1, WaitReason.NEXT, "next in turn")
    earlier = "earlier jobs of the same user come first"
    await waits(world, jobs[3], 4, WaitReason.EARLIER_JOBS, earlier)
    await sweep(world)
    assert [await world.state(job) for job in jobs] == (
        [JobState.SUBMITTED] * 2 + [JobState.QUEUED] * 2
    )
    taken = await world.jobs.get(jobs[0])
    agent = next(one for one in world.agents if one.name == taken.agent)
    at_agent = f"agent {agent.name} has it and starts it when a slot is free: 0 of {agent.slots}"
    quota = {"used": 0, "limit": agent.slots}
    await waits(world, taken.id, 1, WaitReason.AGENTS_BUSY, f"{at_agent} running", **quota)
    own = "user ann has 2 of 2 jobs under way, the most the service allows one user"
    await waits(world, jobs[2], 1, WaitReason.USER_QUOTA, own, used=2, limit=2)
    _, last = [await world.upload("bob", "example") for _ in range(2)]
    await sweep(world)
    most = "the service has 3 of 3 jobs under way, the most it may have"
    await waits(world, last, 1, WaitReason.SERVICE_QUOTA, most, used=3, limit=3)
    patient = await world.upload("ann", "patient")
    busy = "all 3 slots of the 2 agents that can take it are taken"
    await waits(world, patient, 1, WaitReason.AGENTS_BUSY, busy, used=3, limit=3)
    after = await world.upload("ann", "patient", after=str(patient))
    on = f"waits for job {patient} to complete"
    await waits(world, after, 2, WaitReason.DEPENDENCY, on, waits_for=[patient])
    world.services["patient"] = replace(SERVICES["patient"], paused=True, paused_message="disks")
    many = [await world.upload("bob", "patient") for _ in range(6)]
    last = await world.upload("bob", "patient", after=",".join(map(str, many)))
    on = f"waits for jobs {', '.join(map(str, many[:5]))} and more to complete"
    info = await found(world, last)
    assert (info.reason, info.waits_for) == (on, many)
    paused = "service patient is paused: disks"
    await waits(world, patient, 1, WaitReason.PAUSED, paused)
    agent.start(next(one for one in agent.payloads.values() if one.key == taken.key))
    await world.settle()
    assert await world.waiting([await world.jobs.get(taken.id)]) == {}, "it runs"


async def test_a_job_shows_its_place_by_priority_and_when_it_may_be_sent(world: World) -> None:
    await world.start()
    for agent in world.agents:
        agent.drop()
    jobs = [await world.upload("ann", "patient", priority=text) for text in ("-1", "0", "9")]
    later = await world.upload("ann", "patient", not_before="in 1h")
    at = (await world.jobs.get(later)).not_before
    for job_id, position in zip(jobs, (3, 2, 1), strict=True):
        await waits(world, job_id, position, WaitReason.NO_AGENT, "cut off; cut off")
    why = f"to be sent at {say_time(at)}, as it was asked for"
    await waits(world, later, 3, WaitReason.NOT_BEFORE, why, until=utc(at))


async def test_the_start_of_a_job_that_waits_for_a_slot_is_estimated(world: World) -> None:
    of_both = Recent(600.0, {"ann": 3, "bob": 1})

    async def expected(job_id: int, recent: Recent = of_both) -> float | None:
        async def lately(_: str) -> Recent:
            return recent

        listed, now = [await world.jobs.get(job_id)], world.steady.now()
        world.statistics.recent = lately  # type: ignore[method-assign, assignment]
        at = (await world.waiting(listed, in_list=True))[job_id].expected_at
        return None if at is None else (at - utc(now)).total_seconds()

    await world.start()
    jobs = [await world.upload("ann", "patient") for _ in range(3)]
    held = await world.upload("ann", "patient", not_before="in 1h")
    after = await world.upload("ann", "patient", after=str(jobs[0]))
    await sweep(world)
    # One is under way; of bob one is before the second, half of one before the first on average.
    assert 900 <= (await expected(jobs[1]) or 0) <= 1_200
    assert 1_800 <= (await expected(jobs[2]) or 0) <= 2_100
    for job_id, recent in (
        (held, of_both),
        (after, of_both),
        (jobs[1], Recent()),
        (jobs[1], Recent(600.0, None)),  # of too many users
    ):
        assert await expected(job_id, recent) is None
    world.services["patient"] = replace(SERVICES["patient"], paused=True)
    assert await expected(jobs[1]) is None
    world.services["patient"] = SERVICES["patient"]
    for agent in world.agents:
        agent.drop()
    for _ in range(3):
        await sweep(world, 30.0)
    why = await found(world, jobs[1])
    assert (why.code, await expected(jobs[1])) == (WaitReason.NO_AGENT, None)


async def test_a_parent_says_how_many_children_it_waits_for_and_a_child_how_many_may_run(world):
    await world.start()
    parent = await world.upload("ann", "example", array="0-9", max_parallel="2")
    await world.batches.run_once()
    why = "waits for its children: 0 of 10 have ended"
    await waits(world, parent, 1, WaitReason.CHILDREN, why, used=0, limit=10)
    child = await found(world, parent + 10)
    assert (child.code, child.used, child.limit) == (WaitReason.MAX_PARALLEL, 2, 2)
    assert f"job {parent}, has 2 of 2 children under way" in child.reason


async def test_a_job_that_is_to_be_tried_again_shows_when_and_is_sent_then(world: World) -> None:
    await world.start()
    job_id = await world.upload("ann", "again")
    await sweep(world)
    agent = next(one for one in world.agents if one.payloads)
    agent.start(agent.payloads[1])
    await world.settle()
    agent.end(agent.payloads[1], PayloadState.FAILED, Reason.TIMEOUT)
    await world.settle()
    for after_s, begin in ((0.0, "to be tried again at "), (29.0, "to be"), (2.0, "next in turn")):
        await world.clock.advance(after_s)
        assert (await found(world, job_id)).reason.startswith(begin)
        if after_s != 2.0:
            await sweep(world)
            assert await world.state(job_id) is JobState.QUEUED
    await sweep(world)
    job = await world.jobs.get(job_id)
    assert (job.state, job.attempt) == (JobState.SUBMITTED, 2)


async def test_what_comes_while_jobs_are_claimed_is_not_forgotten(world: World) -> None:
    world.bulk = True
    await world.start()
    job_ids = [await world.upload("ann", "patient") for _ in range(3)]
    claim = queue.claim

    def and_another(tx: Tx, *how: Any) -> Claimed:
        claimed = claim(tx, *how)
        world.wakeups.send()  # for a job that was queued, or cancelled, behind it in its commit
        return claimed

    with mock.patch.object(queue, "claim", and_another):
        await world.send.run_once()
    with mock.patch.object(queue, "claim", wraps=claim) as claimed:
        world.send.claims = True
        await world.send.follow()
        claimed.assert_called_once()
        await sweep(world)
        await world.settle()
        claimed.reset_mock()
        ((agent, payload),) = world.payloads()
        agent.end(payload, PayloadState.COMPLETED)
        await world.settle()
    assert await world.state(job_ids[0]) is JobState.COMPLETED
    claimed.assert_called_once()  # together with the end, whose slot it has seen
    two, (*_, (agent, payload)) = mock.Mock(side_effect=[and_another, claim]), world.payloads()
    with mock.patch.object(queue, "claim", lambda *how: two()(*how)):
        agent.end(payload, PayloadState.COMPLETED)
        await world.settle()
    assert two.call_count == 2, "what came meanwhile is not taken for the slot of the end"


async def test_a_round_claims_with_its_ends_and_goes_on_where_there_are_more(world, monkeypatch):
    monkeypatch.setattr(round, "_MAX_FOLLOWED", 1)
    world.bulk = True
    await world.start()
    world.agents[0].drop()
    for service in ("patient", "example", "patient"):
        await world.upload("ann", service)
        await sweep(world)
    world.following.cancel()
    (south, ends), (_, runs) = world.payloads()
    south.start(runs)
    south.end(ends, PayloadState.COMPLETED)
    world.wakeups.sender.clear()
    world.send.claims = True
    assert await world.send.follow() == 1
    assert world.wakeups.sender.is_set()
    assert await world.send.follow() == 2, "an end, and the job that gets its slot"
