"""For how long agents were unreachable, over restarts; what a sweep takes up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from server.agents.agent_client import AgentClient, Sessions
from server.agents.orchestrator_client import OrchestratorClient
from server.agents.registry import Registry
from server.domain.agents import Contact
from server.domain.errors import AgentRefusal
from server.domain.jobs import Bundle, Move, NewJob
from server.domain.leases import Lease, of_agent
from server.stages.agents import Agents
from server.store.agents import SqlAgents
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from shared.sqlite.database import Database
from shared.steady_clock import PersistentClock
from shared.wire import AgentHealth, AgentState, JobState, Limits
from tests.kit.clock import SimClock
from tests.kit.stage_resources import resources

HEALTH = AgentHealth(status="ok", slots=2)
DAY_S = 86_400.0


@dataclass
class Run:
    """One run of a server, with the agent ``north``."""

    agents: Agents
    registry: Registry
    client: AgentClient
    store: SqlAgents
    jobs: SqlJobs

    async def reached(self) -> None:
        await self.agents.contacted("north", HEALTH)
        self.registry.mark_up(self.client, HEALTH)

    def unreachable_s(self) -> float | None:
        return self.registry.unreachable_s("north")


@asynccontextmanager
async def run(folder: Path, machine: SimClock, *settings: str) -> AsyncIterator[Run]:
    clock = PersistentClock(folder, machine)
    database = await Database.open(folder / "server.sqlite", MIGRATIONS, clock)
    clients = [
        OrchestratorClient(name, "", "", "", cast(Sessions, None), clock)
        for name in settings or ("north",)
    ]
    registry, store = Registry(clients, clock), SqlAgents(database)
    jobs = SqlJobs(database, lambda job: None)
    contacts = [Contact(client.name, "job-orchestrator", "") for client in clients]
    how = resources(jobs=jobs, fleet=registry, clock=clock)
    agents = Agents(how, store)
    try:
        registry.remember(await agents.use(contacts))
        for name in {client.name for client in clients} | {"north"}:
            registry.take(Lease(of_agent(name), "a", 1))
        yield Run(agents, registry, clients[0], store, jobs)
    finally:
        clock.save()
        await database.close()


async def test_unreachable_time_goes_on_over_restarts_without_the_time_in_which_no_server_ran(
    tmp_path: Path,
) -> None:
    machine = SimClock()
    async with run(tmp_path, machine) as server:
        await server.reached()
        server.registry.mark_down(server.client, "it is away")
        await machine.advance(100.0)
        await server.agents.stop()
    await machine.advance(DAY_S)
    async with run(tmp_path, machine) as server:
        assert server.unreachable_s() == 100.0
        await machine.advance(50.0)
        await server.agents.run_once()  # as a server that is killed then
    for settings in (("north",), ("other",)):
        await machine.advance(DAY_S)
        async with run(tmp_path, machine, *settings) as server:
            assert server.unreachable_s() == 150.0
    async with run(tmp_path, machine) as server:
        await server.reached()
        assert server.unreachable_s() is None
    async with run(tmp_path, machine) as server:
        assert server.unreachable_s() == 0.0


@pytest.mark.parametrize("jump_s", [-10 * DAY_S, 10 * DAY_S])
async def test_a_clock_that_jumps_makes_no_unreachable_time_longer(
    tmp_path: Path, jump_s: float
) -> None:
    machine = SimClock()
    async with run(tmp_path, machine) as server:
        await server.reached()
        server.registry.mark_down(server.client, "it is away")
        await machine.advance(100.0)
        machine.jump(jump_s)
        await server.agents.run_once()
        assert server.unreachable_s() == 100.0
    machine.jump(jump_s)
    async with run(tmp_path, machine) as server:
        assert server.unreachable_s() == 100.0


async def test_a_long_unreachable_time_is_written_seldom(tmp_path: Path) -> None:
    machine = SimClock()
    kept = set()
    async with run(tmp_path, machine) as server:
        for _ in range(1_000):
            await machine.advance(10.1)
            await server.agents.run_once()
            kept.add((await server.store.all())[0].unreachable_s)
    assert max(kept) > 0.98 * 1_000 * 10.1
    assert len(kept) < 450


async def test_an_agent_that_says_nothing_new_is_written_once_a_minute(tmp_path: Path) -> None:
    machine = SimClock()
    async with run(tmp_path, machine) as server:
        seen = []
        for _ in range(13):
            await server.reached()
            seen.append((await server.store.all())[0].last_heard_at)
            await machine.advance(10.0)
        assert len(set(seen)) == 3
        await server.agents.contacted("north", HEALTH.model_copy(update={"slots": 5}))
        assert (await server.store.all())[0].resources["slots"] == 5


async def test_what_a_crash_left_of_a_lost_agent_is_ended_by_the_next_sweep(
    tmp_path: Path,
) -> None:
    machine = SimClock()
    async with run(tmp_path, machine) as server:
        new = NewJob("ann", "s", Bundle("b", 1, "d"), Limits(), timeout_s=1.0, created_at=1)
        job, _ = await server.jobs.insert(new, "")
        before, after, changes = JobState.QUEUED, JobState.PROCESSING, {"agent": "north"}
        await server.jobs.move(Move(job.id, 0, before, after, 2, "", changes=changes))
        await server.store.set_state("name:north", AgentState.LOST, "gone")
        assert await server.agents.run_once() == 1
        job = await server.jobs.get(job.id)
        assert (job.state, job.infra_used) == (JobState.QUEUED, 1)
        assert server.client.operator_state is AgentState.LOST


async def test_what_another_server_wrote_is_taken_up(tmp_path: Path) -> None:
    machine = SimClock()
    async with run(tmp_path, machine) as server:
        await server.reached()
        assert server.client.accepts_work
        await server.store.set_state("name:north", AgentState.DRAINING, "")
        await server.agents.run_once()
        assert not server.client.accepts_work


async def test_an_agent_to_which_another_server_talks_is_not_declared_lost(tmp_path: Path) -> None:
    machine = SimClock()
    async with run(tmp_path, machine) as server:
        await server.reached()
        server.registry.give_up("north", "another server uses it")
        with pytest.raises(AgentRefusal, match="agent north can be reached"):
            await server.agents.declare_lost("north", "gone")
        await server.store.add_unreachable({"name:north": 20.0})
        record, ended = await server.agents.declare_lost("north", "gone")
        assert (record.state, ended) == (AgentState.LOST, 0)
        await server.reached()
        server.registry.give_up("north", "another server uses it")
        await machine.advance(121.0)  # nor has the other one talked to it for long
        assert (await server.agents.declare_lost("north", ""))[0].state is AgentState.LOST


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_became_of_the_processes_of_a_lost_agent_is_said(
    tmp_path: Path, cancelled: bool
) -> None:
    machine = SimClock()
    async with run(tmp_path, machine) as server:
        new = NewJob("ann", "s", Bundle("b", 1, "d"), Limits(), timeout_s=1.0, created_at=1)
        job, _ = await server.jobs.insert(new, "")
        before, after, changes = JobState.QUEUED, JobState.PROCESSING, {"agent": "north"}
        await server.jobs.move(Move(job.id, 0, before, after, 2, "", changes=changes))
        if cancelled:
            await server.jobs.request_cancel(job.id, 3)
        await server.agents.declare_lost("north", "gone")
        why = "agent north was declared lost, whether its processes are dead is not known"
        reply = f"cancelled; {why}" if cancelled else f"{why}; it will be tried again"
        assert (await server.jobs.get(job.id)).message == reply


async def test_all_jobs_of_a_lost_agent_are_ended_in_few_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run(tmp_path, SimClock()) as server:
        for number in range(200):
            new = NewJob("ann", "s", Bundle(f"b{number}", 1, "d"), Limits(), 1.0, created_at=1)
            await server.jobs.insert(new, "")
        database, calls = server.jobs._database, 0
        await database.write(
            lambda tx: tx.rows("UPDATE jobs SET state = 'Running', attempt = 1, agent = 'north'")
        )
        write = database.write

        def counted(change: Any) -> Any:
            nonlocal calls
            calls += 1
            return write(change)

        monkeypatch.setattr(database, "write", counted)
        _, ended = await server.agents.declare_lost("north", "gone")
        assert (ended, calls <= 4) == (200, True)
