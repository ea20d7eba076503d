"""An agent that the tests of a module share, over HTTP, on a fake sandbox and simulated time.

Each test speaks for a server of its own, so no test sees another's payloads, keys or leases. After
each test what it left is killed and acknowledged; then no half upload, open file, running attempt
or result may be there more than before, and after the last one no task.

A module that uses it says ``pytestmark = pytest.mark.asyncio(loop_scope="module")``. It may hold
``AGENT``, settings of the agent.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.agent_http import AgentClient, calling
from tests.kit.memory_folder import module_folder
from tests.kit.warm import open_files, tasks_now, until_nothing

__all__ = ["agent", "module_folder", "warm_agent"]

_NUMBERS = itertools.count(1)


def held(agent: AgentClient) -> Counter[str]:
    counts = {name: len(list((agent.data / name).iterdir())) for name in ("staging", "results")}
    return Counter(counts | {"files": open_files(), "running": len(agent.sandbox.live)})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm_agent(
    request: pytest.FixtureRequest, module_folder: Path
) -> AsyncIterator[AgentClient]:
    """The module's agent, after a first payload: what is opened at first use is open."""
    settings: dict[str, Any] = getattr(request.module, "AGENT", {})
    async with calling(module_folder, **settings) as found:
        await found.forget(await found.completed())
        tasks = tasks_now()
        yield found
        await found.clock.advance(2)  # a stream notices at its next line that nobody reads it
        await until_nothing(lambda: max(0, tasks_now() - tasks))


class WarmAgent(AgentClient):
    @classmethod
    async def over(cls, first: AgentClient) -> WarmAgent:
        made = cls(first.url, first.http, first.sandbox, first.clock, first.data.parent)
        await made.fresh_server()
        return made

    async def fresh_server(self) -> None:
        """End and acknowledge all that the agent holds, and go on as another server."""
        violations = self.sandbox.violations
        self.sandbox.reset()
        after: int | None = 0
        while after is not None:
            _, listed = await self.call("GET", f"/payloads?after={after}")
            for one in listed["payloads"]:
                for method, path in (("POST", "/kill/"), ("DELETE", "/payloads/")):
                    await self.call(method, f"{path}{one['id']}", params=self._as(one))
            after = listed["next"]
        self.server = f"server-{next(_NUMBERS)}"
        assert violations == []
        # Those that were sent to be kept are, for a while.
        self.kept = set(super().names("bundles"))

    def _as(self, payload: Mapping[str, Any]) -> dict[str, str]:
        """Above every lease that a test may have."""
        return {"lease": str(1 << 40)} if payload["server"] else {}

    def names(self, *folders: str) -> list[str]:
        return [name for name in super().names(*folders) if name not in self.kept]


@pytest_asyncio.fixture(loop_scope="module")
async def agent(warm_agent: AgentClient) -> AsyncIterator[WarmAgent]:
    """The module's agent, with a server of this test."""
    found = await WarmAgent.over(warm_agent)
    before = held(warm_agent)
    yield found
    await found.fresh_server()
    await until_nothing(lambda: held(warm_agent) - before)
