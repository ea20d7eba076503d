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
from tests.kit.fake_agent import FakeAgent
from tests.kit.jobs import job

HOUR_S = 3_600


class PathsAsNames:
    """A storage whose files' names are paths."""

    @asynccontextmanager
    async def open(self, _: FileKind, name: str) -> AsyncIterator[LocalStream]:
        async with opened(partial(LocalStream, Path(name))) as stream:
            yield stream


class Line:
    """A client that sends a bundle to an agent, on simulated time.

    The agent, on a slow disk, takes the whole body unless it is stuck, and answers when the test
    says so.
    """

    def __init__(self, session: aiohttp.ClientSession, *, stuck: bool) -> None:
        self.agent, self.clock = FakeAgent(ends="Running", trick=self._slow), SimClock()
        self.taken, self.done, self._stuck = asyncio.Event(), asyncio.Event(), stuck
        self._session = session

    async def connect(self) -> None:
        self.registry.mark_up(self.client, await self.client.ask_health())

    async def begin(self, bundle: Path) -> None:
        sessions = Sessions(self._session, self._session, cast(Storage, PathsAsNames()))
        self.client = FerrymanAgent("fake", self.agent.url, sessions, self.clock, server="sim")
        self.registry = Registry([self.client], self.clock)
        await self.connect()
        stored = Bundle(str(bundle), bundle.stat().st_size, "d" * 64)
        self.submit = asyncio.create_task(self.client.submit(job(bundle=stored), Service("s")))
        await self.taken.wait()

    async def _slow(self, request: web.Request) -> web.StreamResponse | None:
        if request.path != "/submit":
            return None
        answer = None if self._stuck else await self.agent.submit(request)
        self.taken.set()
        await self.done.wait()
        return answer

    async def pass_time(self, seconds: int) -> None:
        """At most; no longer than the submit takes."""
        for _ in range(seconds // 5):
            asleep = asyncio.create_task(self.clock.until_asleep(5.0))
            await asyncio.wait({asleep, self.submit}, return_when=asyncio.FIRST_COMPLETED)
            asleep.cancel()
            if self.submit.done():
                break
            await self.clock.advance(5.0)


@asynccontextmanager
async def sending(folder: Path, *, stuck: bool = False) -> AsyncIterator[Line]:
    """A large bundle is under way."""
    bundle = folder / "bundle"
    with bundle.open("wb") as file:
        file.truncate(32 << 20)
    async with aiohttp.ClientSession() as session:
        line = Line(session, stuck=stuck)
        async with line.agent.listening():
            await line.begin(bundle)
            yield line
            line.done.set()


async def test_an_agent_that_has_it_may_take_all_the_time_it_needs(tmp_path):
    async with sending(tmp_path) as line:
        await line.pass_time(HOUR_S)
        line.done.set()
        payload: Any = await line.submit
        assert (payload.key, line.agent.calls["POST /submit"]) == ("7.1", 1)


@pytest.mark.parametrize("back", [False, True], ids=["gone", "gone and back"])
async def test_an_agent_that_went_away_meanwhile_may_have_it(tmp_path, back):
    async with sending(tmp_path) as line:
        await line.pass_time(60)
        line.registry.mark_down(line.client, "gone")
        if back:
            await line.connect()
        await line.pass_time(60)
        line.done.set()
        with pytest.raises(Unreachable, match="went away before it answered") as problem:
            await line.submit
        assert problem.value.sent


async def test_an_agent_that_stops_taking_a_bundle_does_not_have_it(tmp_path):
    async with sending(tmp_path, stuck=True) as line:
        await line.pass_time(HOUR_S)
        assert 120 < line.clock.monotonic() < 600
        with pytest.raises(Unreachable, match="stopped taking the bundle") as problem:
            await line.submit
        assert not problem.value.sent
