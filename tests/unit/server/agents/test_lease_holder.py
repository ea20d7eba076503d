"""Which of two servers uses an agent, on simulated time over one real database."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any, cast

import pytest

from server.agents.agent_client import Sessions
from server.agents.lease_holder import LeaseHolder
from server.agents.orchestrator_client import OrchestratorClient
from server.agents.registry import Registry
from server.domain.choose import Candidate
from server.domain.jobs import Bundle, NewJob
from server.domain.leases import LENGTH_S, RENEW_EVERY_S
from server.domain.service import Service
from server.store.jobs import SqlJobs
from server.store.leases import SqlLeases
from server.store.migrations import MIGRATIONS
from shared.wire import AgentHealth, Limits
from tests.kit.clock import SimClock
from tests.model.inline_database import CrashPoint, InlineDatabase

AGENTS = ("north", "south")


class Server:
    """A holder, and what it did."""

    def __init__(self, folder: Path, clock: SimClock, owner: str, *, alone: bool = False) -> None:
        path = folder / "server.sqlite"
        self.database = InlineDatabase(path, MIGRATIONS, CrashPoint(), clock)
        self.jobs = SqlJobs(self.database, lambda job: None)
        clients = [
            OrchestratorClient(name, "", "", "", cast(Sessions, None), clock) for name in AGENTS
        ]
        self.registry = Registry(clients, clock)
        self.leases = SqlLeases(self.database, owner * 12)
        self.talks: set[str] = set()
        self.stopped: list[str] = []
        self.resumed = 0
        self.holder = LeaseHolder(
            self.leases,
            self.jobs,
            self.registry,
            [self.stop],
            self.resume,
            alone=alone,
        )
        self.followers = {one.name: functools.partial(self.follow, one) for one in clients}

    async def follow(self, client: OrchestratorClient) -> None:
        self.talks.add(client.name)
        self.registry.mark_up(client, AgentHealth(status="ok", slots=1))
        try:
            await asyncio.Event().wait()
        finally:
            self.talks.discard(client.name)

    async def settings(self) -> dict[str, Any]:
        return self.followers

    async def stop(self, agent: str) -> None:
        assert self.registry.lease(agent) is None, "nobody begins anything new meanwhile"
        assert agent not in self.talks
        self.stopped.append(agent)

    async def resume(self) -> None:
        self.resumed += 1

    def candidates(self) -> list[str]:
        return [candidate.name for candidate in self.registry.candidates("s")]


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


async def sweep(clock: SimClock, *servers: Server) -> None:
    for server in servers:
        await server.holder.use(server.settings)
        await server.holder.run_once()
    await clock.settle()


async def end(*servers: Server) -> None:
    for server in servers:
        await server.holder.stop()
        server.database.close()


async def test_one_server_talks_to_each_agent_and_another_when_it_does_not_renew(
    tmp_path: Path, clock: SimClock
) -> None:
    first, second = Server(tmp_path, clock, "a"), Server(tmp_path, clock, "b")
    for _ in range(5):
        await sweep(clock, first, second)
        await clock.advance(RENEW_EVERY_S)
    assert (first.talks, first.candidates(), first.resumed) == (set(AGENTS), list(AGENTS), 1)
    assert (second.talks, second.candidates(), second.resumed) == (set(), [], 0)
    assert second.registry.why_none("s", {}).startswith("another server uses agent north")

    await clock.advance(LENGTH_S)  # in which the first is paused
    await sweep(clock, second)
    assert (second.talks, second.candidates(), second.resumed) == (set(AGENTS), list(AGENTS), 1)
    await sweep(clock, first)
    assert (first.talks, first.candidates(), sorted(first.stopped)) == (set(), [], sorted(AGENTS))
    await sweep(clock, first, second)
    assert (first.talks, second.talks) == (set(), set(AGENTS))
    await end(first, second)


async def test_a_server_that_stops_leaves_its_agents_to_others_at_once(
    tmp_path: Path, clock: SimClock
) -> None:
    first, second = Server(tmp_path, clock, "a"), Server(tmp_path, clock, "b")
    await sweep(clock, first, second)
    await first.holder.stop()
    assert first.talks == set()
    assert first.registry.lease("north") is not None, "stages may still have to write"
    await first.leases.release()
    await sweep(clock, second)
    assert second.talks == set(AGENTS)
    await end(first, second)


async def test_a_server_that_is_alone_does_not_wait_for_its_predecessors_leases(
    tmp_path: Path, clock: SimClock
) -> None:
    killed = Server(tmp_path, clock, "a")
    await sweep(clock, killed)
    again = Server(tmp_path, clock, "b", alone=True)
    await sweep(clock, again)
    assert again.talks == set(AGENTS)
    await end(killed, again)


async def test_an_agent_that_has_jobs_has_a_holder_though_it_is_not_in_the_settings(
    tmp_path: Path, clock: SimClock
) -> None:
    server = Server(tmp_path, clock, "a")
    await server.jobs.insert(NewJob("ann", "s", Bundle("b", 1, "d"), Limits(), 60.0, 10), "")
    await server.jobs.claim_fairly(Service("s"), [Candidate("gone", None)], 1, 20)
    await sweep(clock, server)
    assert server.registry.lease("gone") is not None
    assert server.talks == set(AGENTS)
    await clock.advance(7.0)
    assert server.registry.unreachable_s("gone") == 7.0
    await end(server)


async def test_a_lease_that_nobody_took_meanwhile_is_kept(tmp_path: Path, clock: SimClock) -> None:
    server = Server(tmp_path, clock, "a")
    await sweep(clock, server)
    lease = server.registry.lease("north")
    await clock.advance(10 * LENGTH_S)
    await sweep(clock, server)
    assert server.registry.lease("north") == lease
    assert (server.talks, server.stopped, server.resumed) == (set(AGENTS), [], 1)
    await end(server)
