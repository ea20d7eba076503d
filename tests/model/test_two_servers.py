"""Two servers over one store, one of which dies or stands still at every step of a delivery."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from server.domain.errors import ServerPaused
from server.domain.jobs import Job
from server.domain.leases import LENGTH_S, RENEW_EVERY_S
from server.domain.service import Service
from server.stages.clean import recover
from server.storage.folder import FolderStorage
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState
from tests.kit.agent_model import Payload
from tests.model.inline_database import SimulatedCrash
from tests.model.sim_agent import SimAgent
from tests.model.simulation import World, end_in_each_way

SERVICES = {"example": Service("example", runs_per_user=2, max_runs=3, infra_retries=9)}
Act = Callable[[], Coroutine[Any, Any, None]]


@contextmanager
def two_servers(folder: Path) -> Iterator[tuple[World, World]]:
    """Not started; their files are written without steps of their own."""
    folder.mkdir()
    first = World(folder, SERVICES)
    second = first.beside()
    with World(folder, SERVICES).inline():
        yield first, second


async def begin(first: World, second: World) -> None:
    """Each uses one agent; both have taken uploads."""
    await second.start("south")
    await first.start()
    assert [world.follows("north") for world in (first, second)] == [True, False]
    assert [world.follows("south") for world in (first, second)] == [False, True]
    for world, user in zip(itertools.cycle((first, second)), ("ann", "ann", "bob", "bob", "cy")):
        await world.upload(user, "example")


async def deliver(*worlds: World) -> None:
    """A success, a failure and an interruption, and what is sent after them."""
    first = worlds[0]

    def held(state: PayloadState) -> list[tuple[SimAgent, Payload]]:
        """What each server's own agent has."""
        own = [(world.agents[number].name, world) for number, world in enumerate(worlds)]
        return [one for name, world in own for one in world.payloads(state) if one[0].name == name]

    for _ in range(2):
        for world in worlds:
            if world.alive:
                await world.send.run_once()
            await world.clock.settle()
        for agent, payload in held(PayloadState.PREPARED):
            agent.start(payload)
        await first.clock.settle()
        end_in_each_way(held(PayloadState.RUNNING))
        await first.clock.settle()


async def take_over(heir: World) -> None:
    """The other one does not renew its leases any more."""
    for _ in range(round(LENGTH_S / RENEW_EVERY_S) + 1):
        await heir.clock.advance(RENEW_EVERY_S)
        await heir.holder.run_once()
        await heir.clock.settle()
    assert heir.follows("north")
    assert heir.follows("south")


def everything(world: World) -> dict[str, list[tuple[Any, ...]]]:
    """What is stored about jobs, and what the agents have."""
    tables = ("jobs", "events", "attempts", "bundles", "services WHERE last_user != ''")
    connection = world.database._connection
    found = {name: list(map(tuple, connection.execute(f"SELECT * FROM {name}"))) for name in tables}
    payloads = [(agent.name, one.id, one.key, one.status) for agent, one in world.payloads()]
    return {**found, "payloads": payloads}


async def finish(world: World) -> None:
    await world.check()
    await world.drain()
    await world.check()
    await recover(world.jobs, world.scratch, world.running_servers)
    await world.remove_orphans()
    assert not world.leftovers()


async def test_one_server_dies_at_any_step_and_the_other_goes_on(tmp_path: Path) -> None:
    for at in itertools.count(1):
        with two_servers(tmp_path / str(at)) as (first, second):
            await begin(first, second)
            first.crash_point.at = first.crash_point.steps + at
            with suppress(SimulatedCrash):
                await deliver(first, second)
            died = first.crash_point.crashed
            await first.die()
            await deliver(first, second)
            await second.check()
            await take_over(second)
            await finish(second)
            second.database.close()
        if not died:
            break
    assert at > 30, "the story became too short to prove anything"


@pytest.mark.parametrize("reached", [True, False], ids=["finishes", "cannot reach the agents"])
async def test_a_server_that_stood_still_while_another_took_over_writes_nothing(tmp_path, reached):
    for at in itertools.count(1):
        with two_servers(tmp_path / str(at)) as (first, second):
            await begin(first, second)
            first.crash_point.pause_at = first.crash_point.operations + at
            story = deliver(first, second) if reached else deliver(first)
            delivering = asyncio.create_task(story)
            while not (delivering.done() or first.crash_point.paused):
                await first.clock.settle()
            await first.clock.settle()
            paused = first.crash_point.paused
            if not reached:
                second.agents[0].drop()
            await take_over(second)
            if reached:
                await second.drain()
            before = everything(second)
            first.crash_point.go_on()
            await delivering
            await first.clock.advance(1.0 if reached else 0.0)
            after = everything(second)
            if not reached:  # the agent cannot know yet
                before["payloads"] = after["payloads"]
            assert after == before, f"after it stood still at operation {at}"
            await second.holder.run_once()
            await first.holder.run_once()
            assert not first.follows("north")
            await first.die()
            await finish(second)
            second.database.close()
        if not paused:
            break
    assert at > 20, "the story became too short to prove anything"


async def test_an_upload_of_a_server_that_stood_still_is_refused(tmp_path, monkeypatch):
    """Its file may be gone."""
    store = FolderStorage._store

    async def store_and_stand_still(storage: FolderStorage, *what: Any) -> None:
        await store(storage, *what)
        await first.clock.advance(LENGTH_S)
        assert await second.remove_orphans() == 1
        await first.holder.run_once()
        assert await first.leases.running_servers() == {first.leases.owner}

    with two_servers(tmp_path / "data") as (first, second):
        await begin(first, second)
        monkeypatch.setattr(FolderStorage, "_store", store_and_stand_still)
        with pytest.raises(ServerPaused):
            await first.upload("ann", "example")
        monkeypatch.undo()
        await first.upload("ann", "example")
        await first.check()
        await first.die()
        await take_over(second)
        await finish(second)
        second.database.close()


async def sent(first: World, second: World) -> Job:
    await begin(first, second)
    await first.send.run_once()
    await first.clock.settle()
    (job,) = await first.jobs.in_states([JobState.SUBMITTED], "north")
    return job


async def test_a_cancel_is_done_by_the_server_that_talks_to_the_jobs_agent(tmp_path: Path) -> None:
    with two_servers(tmp_path / "data") as (first, second):
        job = await sent(first, second)

        def left() -> str:
            return first.agents[0].payloads[1].status

        asking = asyncio.create_task(second.cancel(LOCAL, job.id, 20.0))
        await second.clock.settle()
        assert left() is PayloadState.PREPARED, "it does not use the agent"
        await first.cancel.run_once()
        await first.clock.advance(10.0)
        assert (await asking).state is JobState.CANCELLED
        assert left() in (PayloadState.KILLED, PayloadState.CLEANED)
        for world in (first, second):
            await world.die()


async def test_a_cancel_that_waits_is_done_as_soon_as_its_server_has_the_lease(tmp_path):
    with two_servers(tmp_path / "data") as (first, second):
        job = await sent(first, second)
        await first.die()
        await second.clock.advance(LENGTH_S)
        asking = asyncio.create_task(second.cancel(LOCAL, job.id, 20.0))
        await second.clock.settle()
        assert not second.follows("north")
        await second.holder.run_once()
        await second.clock.settle()
        await second.cancel.run_once()
        await second.clock.settle()
        assert asking.done(), "no time has passed"
        assert (await asking).state is JobState.CANCELLED
        await second.die()
