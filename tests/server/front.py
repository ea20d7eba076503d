"""The front of both programs, sent raw bytes: what is asked of one is asked of the other."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.kit import raw_http
from tests.kit.agent_http import calling
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_http import Answer
from tests.kit.server_http import driving
from tests.kit.waiting import eventually

TOKEN = "a-token-of-somebody"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}
OTHER = "a-token-of-another"
PORTAL = "https://portal.example.org"


PATHS = {
    "server": ("/api/v1/jobs", "/terminate/1", "/upload"),
    "agent": ("/load", "/kill/1", "/submit"),
}


class Program:
    """One of the two.

    Attributes:
        private: a route for callers with a token.
    """

    def __init__(self, caller: Any, name: str = "server") -> None:
        self.caller, self.name = caller, name
        self.port = int(caller.url.rpartition(":")[2].strip("/"))
        self.private, self.change, self.upload = PATHS[name]
        self.ask = functools.partial(raw_http.ask, self.port)
        self.send = functools.partial(raw_http.send, self.port)
        self.holding = functools.partial(raw_http.holding, self.port)

    async def unfinished(self) -> str:
        """The path of something that has not ended."""
        if self.name == "server":
            return f"/download/{await self.caller.upload()}"
        status, reply = await self.caller.submit("1.1")
        assert status == 200
        return f"/retrieve/{reply['id']}"

    async def timed(self, method: str, path: str, **headers: str) -> Answer:
        """As ``ask``, where the answer takes time, on the program's own clock."""
        asked = asyncio.create_task(self.ask(method, path, **headers))

        async def over() -> bool:
            if self.name == "agent":
                await self.caller.clock.advance(0.1)
            await asyncio.wait([asked], timeout=0.01)
            return asked.done()

        await eventually(over, bool)
        return await asked


@contextlib.asynccontextmanager
async def serving(name: str, folder: Path, **settings: Any) -> AsyncIterator[Program]:
    folder.mkdir(exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        if name == "server":
            client = FakeOrchestrator(then="Running")
            caller: Any = await stack.enter_async_context(driving(folder, client, **settings))
        else:
            caller = await stack.enter_async_context(calling(folder, **settings))
        yield Program(caller, name)


def guarding(name: str, folder: Path) -> contextlib.AbstractAsyncContextManager[Program]:
    """Where a token is needed, and more names and pages are trusted."""
    settings: dict[str, Any] = {
        "tokens": [TOKEN, OTHER],
        "allowed_hosts": ["jobs.example.org", "*.lab.example"],
    }
    if name == "server":
        settings["allowed_origins"] = [PORTAL]
    return serving(name, folder, **settings)


@pytest.fixture(scope="module", params=["server", "agent"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(name: str, module_folder: Path) -> AsyncIterator[Program]:
    """One for all tests that change nothing in it."""
    async with serving(name, module_folder / name) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(name: str, module_folder: Path) -> AsyncIterator[Program]:
    """The same, where a token is needed."""
    async with guarding(name, module_folder / f"{name}-guarded") as found:
        yield found
