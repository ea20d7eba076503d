"""A real server and a real agent in this process, joined by real HTTP, on a fake sandbox."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

from client_agent import app
from client_agent.settings.agent import AgentSection
from server.app import compose
from server.settings import load
from shared.clock import RealClock
from tests.kit.fake_sandbox import FakeSandbox
from tests.kit.raw_archives import FORM

T = TypeVar("T")


class InProcessSystem:
    """What a user sees of a server, and what its folder holds.

    Args:
        data: the server's data folder.
        sandbox: the agent's, where it is a fake one.
    """

    def __init__(
        self, url: str, http: aiohttp.ClientSession, data: Path, sandbox: FakeSandbox | None = None
    ) -> None:
        self.url, self.data = url, data
        self._http, self._sandbox = http, sandbox

    @property
    def sandbox(self) -> FakeSandbox:
        assert self._sandbox is not None
        return self._sandbox

    async def upload(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Send a form; status and document."""
        kind = {"Content-Type": FORM}
        async with self._http.post(f"{self.url}/upload", data=body, headers=kind) as answer:
            return answer.status, json.loads(await answer.read())

    async def ended(self, job_id: int) -> dict[str, Any]:
        """The document of a job, once it has ended."""
        seen = "Queued"
        while True:
            query = {"wait": "20", "seen": seen}
            async with self._http.get(f"{self.url}/api/v1/jobs/{job_id}", params=query) as answer:
                found: dict[str, Any] = json.loads(await answer.read())
            if found["ended"]:
                return found
            seen = found["status"]

    async def result(self, job_id: int) -> bytes:
        """The ZIP of a job that completes."""
        job = await self.ended(job_id)
        assert job["status"] == "Completed", job
        async with self._http.get(f"{self.url}/api/v1/jobs/{job_id}/result") as answer:
            assert answer.status == 200
            return await answer.read()

    async def jobs(self) -> int:
        """How many there are."""
        async with self._http.get(f"{self.url}/api/v1/jobs", params={"limit": "1"}) as answer:
            items = json.loads(await answer.read())["items"]
        return int(items[0]["id"]) if items else 0

    def stored(self) -> frozenset[str]:
        """Bundles, results and halves of them."""
        kinds = ("staging", "bundles", "results")
        return frozenset(
            name for kind in kinds for _, _, names in os.walk(self.data / kind) for name in names
        )


@asynccontextmanager
async def together(folder: Path, services: str = "") -> AsyncIterator[InProcessSystem]:
    """Both, on free ports.

    Args:
        services: TOML of the server's services, if it is not to have the one of the defaults.
    """
    clock = RealClock()
    home = folder / "agent"
    sandbox = FakeSandbox(clock, home)
    given: dict[str, Any] = {"data_dir": home, "port": 0, "slots": 2, "min_free": 0}
    data = folder / "server"
    async with AsyncExitStack() as stack:
        section = AgentSection.model_validate(given)
        agent = await stack.enter_async_context(app.running(section, clock, sandbox))
        file = folder / "ferryman.toml"
        file.write_text(f'{services}[agents.local]\nurl = "http://127.0.0.1:{agent.port}"\n')
        composed = await compose(load.read(file, {"server": {"data_dir": data}}, {}), stack)
        runner = web.AppRunner(composed.application, access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        composed.supervisor.start()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        try:
            yield InProcessSystem(f"http://127.0.0.1:{runner.addresses[0][1]}", http, data, sandbox)
        finally:
            composed.wakeups.close()
            await runner.cleanup()
            await composed.supervisor.stop()


class Driver:
    """Calls a system from functions that are not async, such as Hypothesis's."""

    def __init__(self, runner: asyncio.Runner, system: InProcessSystem) -> None:
        self._runner, self.system = runner, system

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(what)


@contextmanager
def driven(folder: Path) -> Iterator[Driver]:
    """Server, agent and an event loop for both."""
    with asyncio.Runner() as runner:
        context = together(folder)
        system = runner.run(context.__aenter__())
        try:
            yield Driver(runner, system)
        finally:
            runner.run(context.__aexit__(None, None, None))


@contextmanager
def calling(url: str, data: Path) -> Iterator[Driver]:
    """A server that runs elsewhere."""

    async def opened() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    with asyncio.Runner() as runner:
        http = runner.run(opened())
        try:
            yield Driver(runner, InProcessSystem(url, http, data))
        finally:
            runner.run(http.close())
