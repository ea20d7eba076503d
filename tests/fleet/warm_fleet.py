"""A server that all tests of a module share, and agents of each test's own, on time that passes by
itself.

A module that uses it says ``pytestmark = pytest.mark.asyncio(loop_scope="module")``. Each test gets
a :class:`Fleet`: a service with settings of its own, and the agents that it names.
"""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest_asyncio

from server.settings.tables import AgentTable
from tests.kit import command_line
from tests.kit.clock import SimClock
from tests.kit.fake_agent import FakeAgent
from tests.kit.memory_folder import module_folder
from tests.kit.server_http import ServerClient, served_by

__all__ = ["Fleet", "fleet", "module_folder", "shared_server"]

MOST_S = 7_200.0
"""Of simulated time, in one test."""
NUMBERS = itertools.count(1)


class Fleet(ServerClient):
    """One test's part of the server, with a service of its own; ``data``: the server's folder."""

    def __init__(self, caller: ServerClient, clock: SimClock, data: Path) -> None:
        super().__init__(caller.url, caller.session, caller.server)
        self.clock, self.data, self.service = clock, data, f"service-{next(NUMBERS)}"
        self.stack, self._jumps = AsyncExitStack(), False
        self._agents: list[FakeAgent] = []

    async def use(self, *agents: FakeAgent, three: bool = False, **settings: Any) -> None:
        """From now on the server has these agents, by one address or by a job-orchestrator client's
        three, and the service these settings. An agent that no test named gets a name of its own.
        """
        if not self._jumps:
            self.stack.enter_context(self.clock.autojump(MOST_S))
            self._jumps = True
        await self.configure(**settings)
        tables = {}
        self._agents += agents
        for agent in agents:
            if agent.name == "fake":
                agent.name = f"fake-{next(NUMBERS)}"
            agent.clock = self.clock
            if not agent.url:
                await self.stack.enter_async_context(agent.listening())
            tables[agent.name] = _three(agent) if three else AgentTable(url=agent.url)
        await self.apply(tables)
        for agent in agents:
            if agent.trick is None and not three:
                await agent.followed()

    async def apply(self, tables: dict[str, AgentTable]) -> None:
        await self.server.context.fleet.apply(tables)

    async def now(self, **agents: FakeAgent | AgentTable) -> None:
        """As the settings have the agents from now on, by name."""
        tables = {}
        for name, one in agents.items():
            if isinstance(one, FakeAgent) and not one.url:
                await self.stack.enter_async_context(one.listening())
            tables[name] = AgentTable(url=one.url) if isinstance(one, FakeAgent) else one
        await self.apply(tables)

    async def configure(self, service: str = "", **settings: Any) -> None:
        await self.api("PUT", f"/services/{service or self.service}", json=settings)

    async def upload(
        self, files: dict[str, bytes] | None = None, service: str = "", **fields: str
    ) -> int:
        return await super().upload(files, service or self.service, **fields)

    async def running(self, count: int = 1) -> list[int]:
        jobs = [await self.upload() for _ in range(count)]
        for job_id in jobs:
            assert (await self.job(job_id, until="Running"))["status"] == "Running"
        return jobs

    async def busy(self, *agents: FakeAgent, **settings: Any) -> tuple[FakeAgent, int]:
        """The first of these agents, or one of its own, and a job that runs there."""
        used = agents or (FakeAgent(ends="Running"),)
        await self.use(*used, **settings)
        (job_id,) = await self.running()
        return used[0], job_id

    async def agents(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in (await self.api("GET", "/agents"))["items"]}

    async def cli(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command."""
        return await command_line.ferryman(*words, "--url", self.url, cwd=self.data)

    async def cancel(self, job_id: int) -> tuple[int, str]:
        status, found = await self.ask("POST", f"/api/v1/jobs/{job_id}/cancel")
        return status, found["message"]

    async def end(self) -> None:
        """Leave no job that has not ended, and no agent."""
        for agent in self._agents:
            agent.trick = None
        for job in (await self.api("GET", "/jobs", limit="500"))["items"]:
            if not job["ended"]:
                await self.cancel(job["id"])
                await self.job(job["id"])
        await self.apply({})
        await self.stack.aclose()

    async def given_up(self, job_id: int, until: str = "") -> dict[str, Any]:
        """The document, once what cannot be asked about it is Unknown, and then lost."""
        await self.job(job_id, until="Unknown")
        return await self.job(job_id, until=until)


def _three(agent: FakeAgent) -> AgentTable:
    upload, download, kill = (f"{agent.url}/{path}" for path in ("submit", "retrieve", "kill"))
    return AgentTable(upload_url=upload, download_url=download, terminate_url=kill)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_server(module_folder: Path) -> AsyncIterator[tuple[ServerClient, SimClock, Path]]:
    """The module's server; its agents are those of the running test."""
    clock, nobody = SimClock(), FakeAgent("nobody", slots=0)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(nobody.listening())
        toml = f"[services.nobodys]\n[agents.nobody]\nurl = '{address}'\n"
        seldom = {"sender_interval": 5.0, "getter_interval": 5.0, "agent_lost_after": 120.0}
        how: dict[str, Any] = {"machine": clock} | seldom
        caller = await served_by(stack, module_folder, toml, **how)
        await caller.server.context.fleet.apply({})
        yield caller, clock, module_folder / "data"
        stack.enter_context(clock.autojump())


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(shared_server: tuple[ServerClient, SimClock, Path]) -> AsyncIterator[Fleet]:
    """This test's service, and agents that it gives by :meth:`Fleet.use`."""
    found = Fleet(*shared_server)
    yield found
    await found.end()
