"""A server's client of an agent and the agent itself, over HTTP: many at once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from client_agent.api.bulk import Bulk
from server.agents.agent_client import Sessions
from server.agents.ferryman_agent import FerrymanAgent
from server.domain.files import FileKind
from server.domain.jobs import Bundle, Job
from server.domain.service import Service
from server.ports import RefusedByAgent
from server.storage.folder import FolderStorage
from server.storage.scratch import FolderScratch
from shared.clock import RealClock
from shared.wire import PayloadDoc, PayloadState
from tests.support.agent import LIMITS, SERVER, numbered
from tests.support.agent_http import AgentClient, calling
from tests.unit.server.agents.test_deliveries import child

OWNER = "0" * 12


class Pair:
    """Both ends."""

    def __init__(self, agent: AgentClient, client: FerrymanAgent, scratch: FolderScratch) -> None:
        self.agent, self.client, self.scratch = agent, client, scratch
        self.bundle = Bundle("", 0, "")

    def jobs(self, count: int) -> list[Job]:
        return [
            dataclasses.replace(child(n), bundle=self.bundle, limits=LIMITS, timeout_s=60.0)
            for n in range(1, count + 1)
        ]

    async def send(self, *jobs: Job, **service: Any) -> list[PayloadDoc]:
        given = Service("example", **service)
        return list(await asyncio.gather(*(self.client.submit(job, given) for job in jobs)))

    async def run(self, *jobs: Job) -> list[PayloadDoc]:
        """Send them, let each end, and return their documents."""
        sent = await self.send(*jobs)
        await self.agent.sandbox.finish(*(str(job.key) for job in jobs))
        return [PayloadDoc.model_validate(await self.agent.ended(one.id)) for one in sent]


@asynccontextmanager
async def connected(tmp_path: Any) -> AsyncIterator[Pair]:
    token = numbered("")
    names = (OWNER, lambda: f"{int(token()):020x}")
    scratch = FolderScratch(tmp_path / "staging", *names)
    storage = FolderStorage(tmp_path, scratch, *names)
    async with calling(tmp_path, slots=20) as agent, aiohttp.ClientSession() as http:
        sessions = Sessions(http, http, storage)
        client = FerrymanAgent("node", agent.url, sessions, RealClock(), server=SERVER)
        client.unreachable, client.lease = "", 3
        pair = Pair(agent, client, scratch)
        data, digest = agent.bundle({"run.sh": b"true", "a/run.sh": b"of a"})
        async with storage.pending(FileKind.BUNDLE) as pending:
            with scratch.file() as content:
                content.path.write_bytes(data)
                pair.bundle = Bundle(await pending.put(content), len(data), digest)
            pending.commit()
        yield pair


async def test_many_are_sent_fetched_and_acknowledged_together(tmp_path) -> None:
    async with connected(tmp_path) as pair:
        ended = await pair.run(*pair.jobs(12))
        assert [one.status for one in ended] == [PayloadState.COMPLETED] * 12
        with pair.scratch.file() as content:
            found = await pair.client.fetch_many(ended, content)
            data = content.path.read_bytes()
        at = 0
        for doc, part in zip(ended, found, strict=True):
            assert part is not None
            assert doc.result is not None
            offset, fetched = part
            wanted = (at, doc.result.size, doc.result.sha256)
            assert (offset, fetched.size, fetched.sha256) == wanted
            async with pair.agent.http.get(f"/retrieve/{doc.id}") as answer:
                assert await answer.read() == data[offset : offset + fetched.size]
            at += fetched.size
        await asyncio.gather(*(pair.client.acknowledge(one.id, one.key) for one in ended))
        assert list((tmp_path / "agent" / "results").iterdir()) == []


async def test_a_child_gets_its_folder_index_and_variables(tmp_path) -> None:
    async with connected(tmp_path) as pair:
        first, second = pair.jobs(2)
        second = dataclasses.replace(second, bundle_folder="a/", array_index=7)
        await pair.send(first, second, env={"TOKEN": "x"})
        process = await pair.agent.sandbox.process(str(second.key))
        assert process.read("run.sh") == b"of a"
        env = process.launch.env
        assert (env["FERRYMAN_ARRAY_INDEX"], env["TOKEN"]) == ("7", "x")
        for job in (first, second):
            (await pair.agent.sandbox.process(str(job.key))).finish()


async def test_an_agent_without_the_routes_gets_one_at_a_time(tmp_path, monkeypatch) -> None:
    async def no_route(*_: object) -> web.StreamResponse:
        raise web.HTTPNotFound

    for name in ("orders", "results", "acknowledge"):
        monkeypatch.setattr(Bulk, name, no_route)
    async with connected(tmp_path) as pair:
        ended = await pair.run(*pair.jobs(5))
        pair.client.contacts += 1  # it was away, and may be another version
        with pair.scratch.file() as content, pytest.raises(RefusedByAgent, match="one payload"):
            await pair.client.fetch_many(ended, content)
        pair.client.contacts += 1
        await asyncio.gather(*(pair.client.acknowledge(one.id, one.key) for one in ended))
        assert list((tmp_path / "agent" / "results").iterdir()) == []


async def test_what_is_damaged_or_gone_is_missing_from_the_others(tmp_path) -> None:
    async with connected(tmp_path) as pair:
        ended = await pair.run(*pair.jobs(4))
        results = tmp_path / "agent" / "results"
        (results / f"{ended[0].id}.zip").unlink()
        damaged = results / f"{ended[1].id}.zip"
        damaged.write_bytes(bytes(damaged.stat().st_size))
        with pair.scratch.file() as content:
            found = await pair.client.fetch_many(ended, content)
        assert [part is not None for part in found] == [False, False, True, True]
