"""Who gets the next job, why nobody does, for how long agents were unreachable, over restarts, and
what a sweep over the agents takes up.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

from server.agents.agent import Sessions
from server.agents.orchestrator import OrchestratorClient
from server.agents.registry import Registry
from server.agents.sender import order_of
from server.domain.agents import Contact
from server.domain.choose import place
from server.domain.service import Service
from server.stages.agents import Agents
from server.store import agents as rows
from server.store.migrations import MIGRATIONS
from shared.sqlite.database import Database
from shared.steady_clock import PersistentClock
from shared.wire import AgentHealth, AgentState, JobState, PackTask
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.store import Calls, Store, core, job


class Fleet:
    """Agents by name and slots, all of them up."""

    def __init__(self, **slots: int) -> None:
        self.clock = SimClock()
        self.clients = {
            name: OrchestratorClient(name, "", "", "", cast(Sessions, None), self.clock)
            for name in slots
        }
        self.registry = Registry(list(self.clients.values()), self.clock)
        for name, count in slots.items():
            self.up(name, slots=count)

    def up(self, name: str, **health: Any) -> None:
        reply = AgentHealth(**{"status": "ok", "agent": name} | health)
        self.registry.mark_up(self.clients[name], reply)

    def chosen(self, service: str = "s", jobs: int = 1) -> list[str]:
        return [one.name for one in place(self.registry.candidates(service), {}, [1] * jobs)]

    def refuse(self, name: str, *, offered: bool = True, at_least_s: float = 0.0) -> float:
        why = f"{name} is busy"
        return self.registry.refused(name, "s", why, offered=offered, at_least_s=at_least_s)


def test_a_service_is_offered_as_long_as_one_agent_has_not_denied_it() -> None:
    fleet = Fleet(a=1, b=1)
    fleet.registry.mark_down(fleet.clients["b"], "away")
    fleet.refuse("a", offered=False)
    assert fleet.registry.offered("s")
    fleet.up("b")
    fleet.refuse("b", offered=False)
    assert not fleet.registry.offered("s")


async def test_who_refuses_rests_longer_each_time_and_then_one_job_tries_it_out() -> None:
    fleet = Fleet(a=4)
    for rest in (5, 10, 20, 40, 80, 160, 320, 600, 600):
        assert fleet.refuse("a") == rest
        assert fleet.refuse("a") == rest, "another job of the same sweep does not make it longer"
        assert (fleet.chosen(), fleet.chosen("other")) == ([], ["a"])
        assert fleet.registry.why_none("s", {}) == "a is busy"
        await fleet.clock.advance(rest)
    assert fleet.chosen(jobs=4) == ["a"]
    fleet.registry.claimed("a", "s")
    assert fleet.chosen() == []
    fleet.registry.accepted("a", "s")
    assert fleet.chosen(jobs=4) == ["a"] * 4
    assert fleet.refuse("a", at_least_s=7.0) == 7.0


@each(
    "of_job, pack, wanted",
    [
        ({"parent_id": 3, "array_index": 0}, 8, PackTask(batch=3, most=8)),
        ({"parent_id": 3, "array_index": 0}, 1, None),
        ({"parent_id": 3}, 8, None),  # the gather
        ({"heartbeat_timeout_s": 5.0}, 8, None),
    ],
)
def test_an_order_says_what_the_agent_has_to_pack_watch_and_do(of_job, pack, wanted):
    """Only tasks of an array are packed."""
    service = Service("s", pack=pack, heartbeat_timeout_s=60.0, on_shutdown="resubmit")
    order = order_of(job(**of_job), service, "server")
    assert (order.pack, order.on_shutdown) == (wanted, "resubmit")
    assert order.heartbeat_timeout_s == of_job.get("heartbeat_timeout_s", 60.0)


# -- over restarts

HEALTH = AgentHealth(status="ok", slots=2)
DAY_S = 86_400.0


@dataclass
class Run:
    """One run of a server, with the agent ``north``."""

    agents: Agents
    registry: Registry
    client: OrchestratorClient
    store: Calls
    jobs: Store
    database: Database

    async def reached(self) -> None:
        await self.agents.contacted("north", HEALTH)
        self.registry.mark_up(self.client, HEALTH)

    def away(self) -> None:
        self.registry.mark_down(self.client, "it is away")

    def unreachable_s(self) -> float | None:
        return self.registry.unreachable_s("north")

    async def running(self, count: int) -> None:
        """Jobs there."""
        for _ in range(count):
            submitted = await self.jobs.to(await self.jobs.claimed("north"), JobState.SUBMITTED)
            await self.jobs.to(submitted, JobState.RUNNING)


@asynccontextmanager
async def run(folder: Path, machine: SimClock, name: str = "north") -> AsyncIterator[Run]:
    clock = PersistentClock(folder, machine)
    database = await Database.open(folder / "server.sqlite", MIGRATIONS)
    client = OrchestratorClient(name, "", "", "", cast(Sessions, None), clock)
    registry, store = Registry([client], clock), Calls(database, rows)
    jobs = Store(database, [])
    agents = Agents(core(jobs=jobs, registry=registry, clock=clock))
    try:
        registry.remember(await agents.use([Contact(name, "job-orchestrator", "")]))
        yield Run(agents, registry, client, store, jobs, database)
    finally:
        clock.save()
        await database.close()


async def test_unreachable_time_goes_on_over_restarts_without_the_time_when_no_server_ran(tmp_path):
    machine = SimClock()
    async with run(tmp_path, machine) as server:
        await server.reached()
        server.away()
        await machine.advance(100.0)
        server.away()
        machine.jump(3_600.0)
        await server.agents.run_once()
    await machine.advance(DAY_S)
    async with run(tmp_path, machine) as server:
        assert server.unreachable_s() == 100.0
        await machine.advance(50.0)
        await server.agents.run_once()  # as a server that is killed then
    for name in ("north", "other"):
        await machine.advance(DAY_S)
        async with run(tmp_path, machine, name) as server:
            assert server.unreachable_s() == 150.0
    async with run(tmp_path, machine) as server:
        await server.reached()
        assert server.unreachable_s() is None
    async with run(tmp_path, machine) as server:
        assert server.unreachable_s() == 0.0


async def test_of_two_operators_the_second_decides_on_what_the_first_has_left(tmp_path):
    async with run(tmp_path, SimClock()) as server:
        both = server.agents.retire("north", "sold"), server.agents.drain("north", "full")
        retired, refused = cast(Any, await asyncio.gather(*both, return_exceptions=True))
        assert (retired.state, refused.code) == (AgentState.RETIRED, "agent_retired")


async def test_what_goes_on_for_long_is_written_seldom(tmp_path: Path) -> None:
    """That an agent is well once a minute, unless it says something new."""
    machine = SimClock()
    async with run(tmp_path, machine) as server:

        async def record() -> Any:
            return (await server.store.all_agents())[0]

        seen, kept = set(), set()
        for _ in range(13):
            await server.reached()
            seen.add((await record()).last_heard_at)
            await machine.advance(10.0)
        assert len(seen) == 3
        await server.agents.contacted("north", HEALTH.model_copy(update={"slots": 5}))
        assert (await record()).resources["slots"] == 5
        server.away()
        for _ in range(1_000):
            await machine.advance(10.1)
            await server.agents.run_once()
            kept.add((await record()).unreachable_s)
        assert max(kept) > 0.98 * 1_000 * 10.1


async def test_what_a_crash_left_of_a_lost_agent_is_taken_up(tmp_path):
    async with run(tmp_path, SimClock()) as server:
        await server.running(1)
        await server.store.set_state("name:north", AgentState.LOST, "gone")
        server.registry.remember(await server.store.all_agents())
        assert await server.agents.run_once() == 1
        ended = await server.jobs.get(1)
        assert (ended.state, ended.infra_used) == (JobState.QUEUED, 1)
        assert server.client.operator_state is AgentState.LOST
        await server.reached()
        assert server.client.accepts_work
        await server.agents.drain("north", "")
        assert not server.client.accepts_work


async def test_all_jobs_of_a_lost_agent_are_ended_in_few_transactions(tmp_path: Path) -> None:
    async with run(tmp_path, SimClock()) as server:
        await server.running(200)
        with mock.patch.object(server.database, "write", wraps=server.database.write) as write:
            _, ended = await server.agents.declare_lost("north", "gone")
        assert (ended, write.call_count <= 4) == (200, True)
