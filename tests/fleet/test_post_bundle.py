"""How long the answer to a bundle is waited for: as long as its agent lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from server.agents.agent_client import Sessions
from server.agents.ferryman_agent import FerrymanAgent
from server.agents.registry import Registry
from server.domain.jobs import Bundle, FileKind
from server.domain.service import Service
from server.ports import Storage, Unreachable
from server.storage.stream import LocalStream
from shared.files.opened import opened
from tests.kit.clock import SimClock
from tests.kit.fake_agent import FakeAgent, HeldPayload
from tests.kit.jobs import job

HOUR_S = 3_600


class PathsAsNames:
    """A storage whose files' names are paths."""

    @asynccontextmanager
    async def open(self, _: FileKind, name: str) -> AsyncIterator[LocalStream]:
        async with opened(partial(LocalStream, Path(name))) as stream:
            yield stream


class Line:
    """A client to a fake agent, on simulated time."""

    def __init__(self, agent: FakeAgent, session: aiohttp.ClientSession) -> None:
        self.agent, self.clock = agent, SimClock()
        sessions = Sessions(session, session, cast(Storage, PathsAsNames()))
        self.client = FerrymanAgent("fake", agent.url, sessions, self.clock, server="sim")
        self.registry = Registry([self.client], self.clock)

    async def connect(self) -> None:
        self.registry.mark_up(self.client, await self.client.ask_health())

    def submit(self, bundle: Path) -> asyncio.Task[Any]:
        stored = Bundle(str(bundle), bundle.stat().st_size, "d" * 64)
        return asyncio.create_task(self.client.submit(job(bundle=stored), Service("s")))

    async def pass_time(self, seconds: int, submit: asyncio.Task[Any]) -> None:
        """At most; no longer than the submit takes."""
        for _ in range(seconds // 5):
            asleep = asyncio.create_task(self.clock.until_asleep(5.0))
            await asyncio.wait({asleep, submit}, return_when=asyncio.FIRST_COMPLETED)
            asleep.cancel()
            if submit.done():
                break
            await self.clock.advance(5.0)


@asynccontextmanager
async def line(agent: FakeAgent) -> AsyncIterator[Line]:
    async with agent.listening(), aiohttp.ClientSession() as session:
        found = Line(agent, session)
        await found.connect()
        yield found


class SlowDisk:
    """Takes the whole body, and answers when the test says so."""

    def __init__(self, agent: FakeAgent) -> None:
        self._agent, self.taken, self.done = agent, asyncio.Event(), asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        if request.path != "/submit":
            return None
        answer = await self._agent.submit(request)
        self.taken.set()
        await self.done.wait()
        return answer


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    with path.open("wb") as file:
        file.truncate(32 << 20)
    return path


async def test_an_order_says_what_the_agent_has_to_watch_and_do(bundle):
    agent = FakeAgent(ends="Running")
    service = Service("s", heartbeat_timeout_s=60.0, on_shutdown="resubmit")
    async with line(agent) as found:
        for own in (None, 5.0):
            stored = Bundle(str(bundle), bundle.stat().st_size, "d" * 64)
            await found.client.submit(job(bundle=stored, heartbeat_timeout_s=own), service)
    assert [order["heartbeat_timeout_s"] for order in agent.orders] == [60.0, 5.0]
    assert {order["on_shutdown"] for order in agent.orders} == {"resubmit"}


async def test_an_agent_that_has_it_may_take_all_the_time_it_needs(bundle):
    agent = FakeAgent(ends="Running")
    agent.trick = disk = SlowDisk(agent)
    async with line(agent) as found:
        submit = found.submit(bundle)
        await disk.taken.wait()
        await found.pass_time(HOUR_S, submit)
        disk.done.set()
        assert (await submit).key == "7.1"
        assert agent.calls["POST /submit"] == 1


@pytest.mark.parametrize("back", [False, True], ids=["gone", "gone and back"])
async def test_an_agent_that_went_away_meanwhile_may_have_it(bundle, back):
    agent = FakeAgent(ends="Running")
    agent.trick = disk = SlowDisk(agent)
    async with line(agent) as found:
        submit = found.submit(bundle)
        await disk.taken.wait()
        await found.pass_time(60, submit)
        found.registry.mark_down(found.client, "gone")
        if back:
            await found.connect()
        await found.pass_time(60, submit)
        disk.done.set()
        with pytest.raises(Unreachable, match="went away before it answered") as problem:
            await submit
        assert problem.value.sent


async def test_an_agent_that_stops_taking_a_bundle_does_not_have_it(bundle):
    agent, never = FakeAgent(), asyncio.Event()

    async def stuck(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/submit":
            await never.wait()
        return None

    agent.trick = stuck
    async with line(agent) as found:
        submit = found.submit(bundle)
        await agent.until(lambda: agent.calls["POST /submit"] == 1)
        await found.pass_time(HOUR_S, submit)
        assert 120 < found.clock.monotonic() < 600
        with pytest.raises(Unreachable, match="stopped taking the bundle") as problem:
            await submit
        assert not problem.value.sent
        never.set()


@pytest.mark.parametrize(
    "lie", [{"key": "999.1"}, {"key": None}, {"server": "another"}, {"status": "Exploded"}]
)
@pytest.mark.parametrize("path", ["/payloads", "/settle"])
async def test_an_answer_about_another_attempt_is_no_answer(tmp_path, lie, path):
    agent = FakeAgent()

    async def lies(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith(path):
            return None
        await request.read()
        doc = HeldPayload(1, "sim", "7.1", None).wire() | lie
        said = {"answers": [{"payload": doc}]} if path == "/payloads" else {"payload": doc}
        return web.json_response(said)

    (tmp_path / "bundle").write_bytes(b"x")
    async with line(agent) as found:
        agent.trick = lies
        calls = {
            "/payloads": lambda: found.submit(tmp_path / "bundle"),
            "/settle": lambda: found.client.settle(job()),
        }
        with pytest.raises(Unreachable) as problem:
            await calls[path]()
        assert problem.value.sent
