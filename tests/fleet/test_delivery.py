"""Claiming and sending, step by step on simulated time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from server.domain.jobs import Bundle, NewJob
from server.domain.service import Service
from server.ports import RefusedByAgent, Unreachable
from server.stages import get
from server.stages.waiting import why_waiting
from server.store import claims
from shared.ids import AttemptKey
from shared.principals import LOCAL
from shared.wire import JobState, Limits, PayloadDoc, PayloadState, Reason, WaitReason
from tests.kit.simulation import World

SERVICES = {"s": Service("s", runs_per_user=50, max_runs=50, queue_timeout_s=100.0)}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, dict(SERVICES), lost_after_s=3_600.0)
    with world.inline():
        yield world
    if hasattr(world, "database"):
        world.database.close()


async def sweep(world: World) -> None:
    await world.send.run_once()
    await world.settle()


async def pass_time(world: World, seconds: float) -> None:
    """With a sweep each second."""
    for _ in range(round(seconds)):
        await world.clock.advance(1.0)
        await sweep(world)


async def state(world: World, job_id: int) -> JobState:
    return (await world.jobs.get(job_id)).state


def always(agent: Any, problem: Exception, calls: Counter[str]) -> None:
    """Each submit to the agent ends so."""

    async def submit(*_: Any) -> Any:
        calls[agent.name] += 1
        raise problem

    agent.submit = submit


async def test_no_agent_gets_more_than_its_slots_and_the_rest_waits_with_a_reason(world):
    await world.start()
    jobs = [await world.upload("ann", "s") for _ in range(6)]
    await sweep(world)
    await sweep(world)
    assert [len(agent.payloads) for agent in world.agents] == [1, 2]
    assert [await state(world, job_id) for job_id in jobs] == [JobState.SUBMITTED] * 3 + [
        JobState.QUEUED
    ] * 3
    listed = [await world.jobs.get(job_id) for job_id in jobs]
    why = await why_waiting(listed, SERVICES, world.jobs, world.registry, 0)
    waiting, sent = why[jobs[3]], why[jobs[0]]
    assert (waiting.code, waiting.used, waiting.limit) == (WaitReason.AGENTS_BUSY, 3, 3)
    assert waiting.reason == "all 3 slots of the 2 agents that can take it are taken"
    assert "starts it when a slot is free" in sent.reason


async def test_a_sweep_reads_no_more_of_the_queue_than_there_are_free_slots(world, monkeypatch):
    await world.start()
    for number in range(20):
        await world.upload(f"user{number}", "s")
    asked = []
    honest = claims._waiting

    async def counted(tx: Any, service: str, between: Any, users: int, each: int) -> Any:
        asked.append((users, each))
        return await honest(tx, service, between, users, each)

    monkeypatch.setattr(claims, "_waiting", counted)
    await sweep(world)
    await sweep(world)
    assert asked == [(3, 3)], "three slots; then none"


async def test_a_slot_is_free_as_soon_as_the_attempt_has_ended_not_when_its_result_is_here(world):
    await world.start()
    jobs = [await world.upload("ann", "s") for _ in range(4)]
    await sweep(world)
    south = world.agents[1]
    south.faults = ["slow"]
    first = next(iter(south.payloads.values()))
    south.start(first)
    south.end(first, PayloadState.COMPLETED)
    await world.settle()
    assert await state(world, first.key.job_id) is not JobState.COMPLETED, (
        "its result is on its way"
    )
    await sweep(world)
    assert await state(world, jobs[3]) is not JobState.QUEUED


async def test_users_take_turns_also_where_slots_are_few(world):
    await world.start()
    world.agents[0].drop()
    order: list[str] = []
    for user in ("ann", "bob", "cy"):
        for _ in range(4):
            await world.upload(user, "s")
    south = world.agents[1]
    for _ in range(6):
        await sweep(world)
        for payload in list(south.payloads.values()):
            if payload.status is PayloadState.PREPARED:
                order.append((await world.jobs.get(payload.key.job_id)).user_id)
                south.start(payload)
                south.end(payload, PayloadState.COMPLETED)
        await world.settle()
    assert sorted(order) == ["ann"] * 4 + ["bob"] * 4 + ["cy"] * 4
    assert all(set(order[n : n + 3]) == {"ann", "bob", "cy"} for n in range(0, 12, 3))


async def test_a_stale_question_leaves_a_newer_delivery_alone(world):
    """The first attempt's question sleeps while the second attempt's bundle is on its way."""
    await world.start()
    world.agents[0].drop()
    south = world.agents[1]
    south.faults = ["lost", "unreachable"]
    job_id = await world.upload("ann", "s")
    await sweep(world)
    assert world.clock.sleeping == 1, "the question was not answered, and is asked again soon"
    first = await world.jobs.get(job_id)
    south.machine.settle("sim", first.key)
    await world.get.lost(south, first, "given up meanwhile")

    arrived = asyncio.Event()
    honest, submits = south.submit, []

    async def slow(job: Any, *more: Any) -> Any:
        submits.append(job.key)
        await arrived.wait()
        return await honest(job, *more)

    south.submit = slow
    await sweep(world)
    assert (await world.jobs.get(job_id)).attempt == 2
    await pass_time(world, 10)
    assert south.machine.settled == {("sim", str(first.key))}, "the newer key was settled"
    arrived.set()
    await world.settle()
    assert await state(world, job_id) is JobState.SUBMITTED
    assert [key.attempt for key in submits] == [2]


async def test_a_submit_that_is_in_progress_is_asked_about_and_not_counted_as_a_refusal(world):
    await world.start()
    world.agents[0].drop()
    calls: Counter[str] = Counter()
    again = RefusedByAgent("submit_in_progress", "wait", final=False, retry_after_s=1.0)
    always(world.agents[1], again, calls)
    job_id = await world.upload("ann", "s")
    south, key = world.agents[1], AttemptKey(job_id, 1)
    south.faults = ["in_progress", "in_progress"]
    await sweep(world)
    south.arrive(key, world.acknowledged[job_id])
    await world.clock.advance(5.0)
    job = await world.jobs.get(job_id)
    assert (job.state, job.key, calls["south"]) == (JobState.SUBMITTED, key, 1)
    assert [candidate.most for candidate in world.registry.candidates("s")] == [None], (
        "it was not refused"
    )


async def test_what_cannot_be_sent_is_sent_again_after_growing_delays(world):
    await world.start()
    world.agents[0].drop()
    calls: Counter[str] = Counter()
    always(world.agents[1], Unreachable("cut", sent=True), calls)
    job_id = await world.upload("ann", "s")
    await sweep(world)
    await pass_time(world, 90)
    assert 5 <= calls["south"] <= 8, "at once, and after 1, 2, 4, 8, 16, 32 s"
    assert not (await world.jobs.get(job_id)).ended


async def test_a_refusing_agent_is_asked_seldom_and_the_history_does_not_grow_with_it(world):
    await world.start()
    world.agents[0].drop()
    calls: Counter[str] = Counter()
    busy = RefusedByAgent("disk_full", "the disk is full", final=False, retry_after_s=1.0)
    always(world.agents[1], busy, calls)
    world.services["s"] = Service("s", runs_per_user=50, max_runs=50)
    jobs = [await world.upload("ann", "s") for _ in range(5)]
    await sweep(world)
    assert calls["south"] == 2, "its slots; the others were not even offered"
    await pass_time(world, 1_000)
    assert calls["south"] <= 2 + 8, "after 5, 10, 20, 40, 80, 160, 320 s, one job each time"
    events = [len(await world.jobs.events(job_id)) for job_id in jobs]
    assert max(events) <= 4
    assert [await state(world, job_id) for job_id in jobs] == [JobState.QUEUED] * 5
    del world.agents[1].submit
    await pass_time(world, 700)
    assert await state(world, jobs[0]) is JobState.SUBMITTED


async def test_jobs_of_a_service_that_was_taken_away_say_so_and_end_at_last(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    for agent in world.agents:
        agent.drop()
    await world.clock.advance(3_599.0)
    for _ in ("taken out", "again, after it was put back"):
        del world.services["s"]
        world.wakeups.services_changed()
        await sweep(world)
        await world.clock.advance(3_599.0)
        await sweep(world)
        world.services["s"] = Service("s")
        world.wakeups.services_changed()
        await sweep(world)
    del world.services["s"]
    world.wakeups.services_changed()
    await sweep(world)
    await world.clock.advance(3_599.0)
    await sweep(world)
    job = await world.jobs.get(job_id)
    waiting = (await why_waiting([job], {}, world.jobs, world.registry, 0)).get(job.id)
    assert waiting is not None
    assert waiting.reason == "the server has no service s in its settings"
    await world.clock.advance(10.0)
    await sweep(world)
    job = await world.jobs.get(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.NOT_OFFERED)


async def test_a_bundle_that_an_agent_refuses_for_good_is_shared_with_no_later_upload(world):
    await world.start()
    calls: Counter[str] = Counter()
    for agent in world.agents:
        always(agent, RefusedByAgent("invalid_bundle", "a checksum is wrong", final=True), calls)
    job_id = await world.upload("ann", "s")
    assert [row["shared"] for row in await world.database.rows("SELECT * FROM bundles")] == [1]
    await sweep(world)
    job = await world.jobs.get(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.INVALID_BUNDLE)
    assert [row["shared"] for row in await world.database.rows("SELECT * FROM bundles")] == [0]


async def test_a_job_is_not_refused_for_good_while_an_agent_that_is_away_may_take_it(world):
    await world.start()
    world.agents[0].drop()
    calls: Counter[str] = Counter()
    denied = RefusedByAgent("not_offered", "no", final=True)
    always(world.agents[1], denied, calls)
    job_id = await world.upload("ann", "s")
    await sweep(world)
    assert (await state(world, job_id), calls["south"]) == (JobState.QUEUED, 1)
    await world.agents[0].connect()
    await pass_time(world, 61)
    assert (await world.jobs.get(job_id)).agent == "north"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_agent_that_was_taken_out_of_the_settings_kills_nothing(world, cancelled):
    await world.start()
    job_id = await world.upload("ann", "s")
    await sweep(world)
    world.registry._clients.clear()
    if cancelled:
        job = await world.cancel(LOCAL, job_id, 0.0)
        await world.settle()
        assert (job.state, job.ended) == (JobState.SUBMITTED, False)
    await world.clock.advance(61.0)
    await world.poll.run_once()
    assert await state(world, job_id) is JobState.UNKNOWN
    await world.clock.advance(3_600.0)
    await world.poll.run_once()
    job = await world.jobs.get(job_id)
    assert job.state is (JobState.CANCELLED if cancelled else JobState.QUEUED)
    assert "has not been in the server's settings for" in job.message
    assert ("whether its processes are dead is not known" in job.message) is cancelled


async def test_why_a_cancel_waits_is_logged_once(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    await sweep(world)
    world.registry._clients.clear()
    with capture_logs() as logs:
        await world.cancel(LOCAL, job_id, 0.0)
        await world.settle()
        for _ in range(5):
            await world.cancel.run_once()
            await world.settle()
    assert [line["job_id"] for line in logs if line["event"] == "cancel.waits"] == [job_id]


async def test_a_cancel_asks_once_while_the_result_is_on_its_way(world):
    await world.start()
    job_id = await world.upload("ann", "s")
    await sweep(world)
    agent = next(one for one in world.agents if one.payloads)
    payload = next(iter(agent.payloads.values()))
    agent.start(payload)
    agent.faults = ["slow"]
    agent.end(payload, PayloadState.COMPLETED)
    await world.settle()
    asked = 0
    honest = agent.settle

    async def counted(*args: Any, **how: Any) -> Any:
        nonlocal asked
        asked += 1
        return await honest(*args, **how)

    agent.settle = counted
    wish = asyncio.ensure_future(world.cancel(LOCAL, job_id, 60.0))
    await world.clock.advance(29.0)
    assert asked <= 6
    await world.clock.advance(2.0)
    with pytest.raises(Exception, match="Completed"):
        await wish


async def test_jobs_of_agents_that_send_events_are_not_read_at_every_sweep(world, monkeypatch):
    await world.start()
    for _ in range(3):
        await world.upload("ann", "s")
    await sweep(world)
    reads = Counter[str]()
    honest = world.jobs.in_states

    async def counted(states: Any, agent: str | None = None) -> Any:
        reads[agent or ""] += 1
        return await honest(states, agent)

    monkeypatch.setattr(world.jobs, "in_states", counted)
    for _ in range(5):
        await world.poll.run_once()
    assert not reads
    world.agents[0].drop()
    await world.poll.run_once()
    assert not reads, "nothing is judged yet"
    await world.clock.advance(61.0)
    assert await world.poll.run_once() == 1
    assert reads == {"north": 1}


async def test_an_agent_that_names_payloads_without_end_is_read_no_faster_than_they_are_looked_at(
    world, monkeypatch
):
    monkeypatch.setattr(get, "_MAX_IN_FLIGHT", 3)
    await world.start()
    agent, go, asked = world.agents[0], asyncio.Event(), list[int]()

    async def acknowledge(payload_id: int, key: str | None) -> None:
        asked.append(payload_id)
        await go.wait()

    agent.acknowledge = acknowledge
    named = [PayloadDoc(id=id, status=PayloadState.COMPLETED, key=f"{id}.1") for id in range(1, 11)]

    async def name_all() -> None:
        for payload in named:
            await world.get.receive(agent, payload)

    naming = asyncio.create_task(name_all())
    await world.settle()
    assert asked == [1, 2, 3]
    await world.get.receive(agent, named[0])
    world.get.on_payload(agent, named[9])
    await world.settle()
    assert asked == [1, 2, 3, 10], "news of one of them, and what the server asked for, pass"
    assert not naming.done()
    go.set()
    await naming
    await world.settle()
    assert {*asked} == {payload.id for payload in named}


async def commits(world: World, action: Callable[[], Awaitable[object]]) -> int:
    """How many transactions it makes."""
    count, write = 0, world.database.write

    async def counted(change: Any) -> Any:
        nonlocal count
        count += 1
        return await write(change)

    with mock.patch.object(world.database, "write", counted):
        await action()
    return count


async def many(world: World, count: int = 200) -> None:
    """Queued jobs."""
    for number in range(count):
        new = NewJob("ann", "s", Bundle(f"b{number}", 1, "d"), Limits(), 60.0, world.steady.now())
        await world.jobs.insert(new, "queued")


@pytest.mark.parametrize("agent", ["north", "gone"])
async def test_all_jobs_of_an_agent_that_goes_away_are_moved_in_few_transactions(world, agent):
    await world.start()
    await many(world)
    sent = f"UPDATE jobs SET state = 'Running', attempt = 1, agent = '{agent}', payload_id = id"
    world.database._run(sent, None)
    if agent == "gone":
        await world.holder.run_once()  # takes the lease
    else:
        world.agents[0].drop()
    await world.clock.advance(61.0)
    assert await commits(world, world.poll.run_once) <= 3
    unknown = await world.jobs.in_states([JobState.UNKNOWN], agent)
    assert len(unknown) == 200


@pytest.mark.parametrize("in_settings", [True, False])
async def test_all_that_waited_too_long_is_given_up_in_few_transactions(world, in_settings):
    await world.start()
    for agent in world.agents:
        agent.drop()
    await many(world, 100)
    if not in_settings:
        del world.services["s"]
        world.wakeups.services_changed()
        await sweep(world)
        await world.clock.advance(3_599.0)
    await world.clock.advance(101.0)
    world.wakeups.services_changed()
    assert await commits(world, world.send.run_once) <= 5
    over = [await state(world, number) for number in range(1, 101)]
    assert set(over) == {JobState.FAILED}
