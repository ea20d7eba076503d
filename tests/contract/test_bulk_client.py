"""A server's client of an agent and the agent itself, over HTTP: many at once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from client_agent.api.bulk import Bulk
from client_agent.intake.many import ManyIntake
from client_agent.payloads.errors import Refused
from server.agents import combined_submits
from server.agents.agent_client import Sessions
from server.agents.ferryman_agent import FerrymanAgent
from server.domain.jobs import Bundle, FileKind, Job
from server.domain.service import Service
from server.ports import RefusedByAgent, Unreachable
from server.storage.folder import FolderStorage, stored_path
from server.storage.scratch import FolderScratch
from shared.clock import RealClock, yield_to_loop
from shared.ids import Start
from shared.wire import PayloadDoc, PayloadState
from tests.kit.agent_http import LIMITS, SERVER, AgentClient, calling, numbered
from tests.unit.server.agents.test_deliveries import child


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

    def new_name() -> str:
        return f"{int(token()):032x}"

    scratch = FolderScratch(tmp_path / "staging", new_name)
    storage = FolderStorage(tmp_path, scratch, new_name)
    async with calling(tmp_path, slots=20) as agent, aiohttp.ClientSession() as http:
        sessions = Sessions(http, http, storage)
        client = FerrymanAgent(
            "node", agent.url, sessions, RealClock(), server=SERVER, start=Start(3, "a")
        )
        client.unreachable = ""
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

    for name in ("payloads", "orders", "results", "acknowledge"):
        monkeypatch.setattr(Bulk, name, no_route)
    async with connected(tmp_path) as pair:
        ended = await pair.run(*pair.jobs(5))
        pair.client.contacts += 1  # it was away, and may be another version
        with pair.scratch.file() as content, pytest.raises(RefusedByAgent, match="one payload"):
            await pair.client.fetch_many(ended, content)
        pair.client.contacts += 1
        await asyncio.gather(*(pair.client.acknowledge(one.id, one.key) for one in ended))
        assert list((tmp_path / "agent" / "results").iterdir()) == []


def counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """Requests to routes for many."""
    made = Counter[str]()
    for name in names:
        handler = getattr(Bulk, name)

        async def count(bulk: Bulk, request: web.Request, handler=handler, name=name) -> Any:
            made[name] += 1
            return await handler(bulk, request)

        monkeypatch.setattr(Bulk, name, count)
    return made


def single(job: Job, bundle: Bundle) -> Job:
    return dataclasses.replace(job, parent_id=None, bundle=bundle)


async def test_single_jobs_share_requests_with_what_is_acknowledged(tmp_path, monkeypatch) -> None:
    made = counted(monkeypatch, "payloads", "acknowledge")
    async with connected(tmp_path) as pair:
        jobs = [single(job, pair.bundle) for job in pair.jobs(20)]
        ended = await pair.run(*jobs[:10])
        assert [one.status for one in ended] == [PayloadState.COMPLETED] * 10
        assert made["payloads"] < 10  # two at once, and the others together
        forgotten = [asyncio.create_task(pair.client.acknowledge(e.id, e.key)) for e in ended]
        await yield_to_loop()
        await pair.run(*jobs[10:])
        await asyncio.gather(*forgotten)
        assert made["acknowledge"] == 0
        results = {path.name for path in (tmp_path / "agent" / "results").iterdir()}
        assert results.isdisjoint({f"{one.id}.zip" for one in ended})


async def test_acknowledgements_go_by_themselves_when_nothing_is_sent(
    tmp_path, monkeypatch
) -> None:
    made = counted(monkeypatch, "payloads", "acknowledge")
    async with connected(tmp_path) as pair:
        ended = await pair.run(*(single(job, pair.bundle) for job in pair.jobs(3)))
        made.clear()
        await asyncio.gather(*(pair.client.acknowledge(one.id, one.key) for one in ended))
        assert made == {"acknowledge": 1}
        assert list((tmp_path / "agent" / "results").iterdir()) == []


async def test_what_could_not_be_carried_goes_by_itself(tmp_path, monkeypatch) -> None:
    """The agent drains, or is of an earlier version."""
    async with connected(tmp_path) as pair:
        jobs = [single(job, pair.bundle) for job in pair.jobs(4)]
        ended = await pair.run(*jobs[:2])
        forgotten = [asyncio.create_task(pair.client.acknowledge(e.id, e.key)) for e in ended]
        await yield_to_loop()

        async def draining(*_: object) -> web.StreamResponse:
            raise Refused(503, "draining", "it drains")

        with monkeypatch.context() as patch:
            patch.setattr(ManyIntake, "check_ready", draining)
            with pytest.raises(RefusedByAgent) as no:
                await pair.send(jobs[2])
            assert (no.value.code, no.value.final) == ("draining", False)
        await asyncio.gather(*forgotten)
        assert list((tmp_path / "agent" / "results").iterdir()) == []


async def test_an_agent_that_takes_no_bundles_together_gets_each_by_itself(
    tmp_path, monkeypatch
) -> None:
    asked = 0

    async def no_route(*_: object) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        raise web.HTTPMethodNotAllowed("POST", ["GET"])

    monkeypatch.setattr(Bulk, "payloads", no_route)
    made = counted(monkeypatch, "orders", "acknowledge")
    async with connected(tmp_path) as pair:
        ended = await pair.run(*(single(job, pair.bundle) for job in pair.jobs(8)))
        before = asked
        pair.client.contacts += 1  # it was away, and may be another version
        children = [dataclasses.replace(job, id=job.id + 20) for job in pair.jobs(5)]
        ended += await pair.run(*children)
        assert (asked - before, made["orders"]) == (1, 1)
        await asyncio.gather(*(pair.client.acknowledge(one.id, one.key) for one in ended))
        assert list((tmp_path / "agent" / "results").iterdir()) == []


async def test_a_request_that_is_not_taken_is_the_fault_of_none_in_it(
    tmp_path, monkeypatch
) -> None:
    async def too_large(*_: object) -> web.StreamResponse:
        raise Refused(413, "too_large", "no")

    monkeypatch.setattr(Bulk, "payloads", too_large)
    async with connected(tmp_path) as pair:
        ended = await pair.run(*(single(job, pair.bundle) for job in pair.jobs(3)))
        assert [one.status for one in ended] == [PayloadState.COMPLETED] * 3


async def test_a_large_bundle_goes_by_itself(tmp_path, monkeypatch) -> None:
    made = counted(monkeypatch, "payloads")
    monkeypatch.setattr(combined_submits, "MAX_BUNDLE", 10)
    async with connected(tmp_path) as pair:
        await pair.run(*(single(job, pair.bundle) for job in pair.jobs(2)))
        assert not made


@pytest.mark.parametrize("answer", ["{}", '{"answers": []}', "<html>", ""])
async def test_an_answer_that_is_none_is_asked_for_again_by_key(
    tmp_path, monkeypatch, answer
) -> None:
    async def nonsense(*_: object) -> web.StreamResponse:
        return web.Response(text=answer)

    monkeypatch.setattr(Bulk, "payloads", nonsense)
    async with connected(tmp_path) as pair:
        with pytest.raises(Unreachable) as lost:
            await pair.send(*(single(job, pair.bundle) for job in pair.jobs(1)))
        assert lost.value.sent


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


@pytest.mark.parametrize("left", [0, 60])
async def test_a_bundle_that_was_cut_short_is_not_taken_for_one_that_the_agent_has(
    tmp_path, left
) -> None:
    async with connected(tmp_path) as pair:
        (job,) = [single(one, pair.bundle) for one in pair.jobs(1)]
        stored = stored_path(tmp_path, FileKind.BUNDLE, pair.bundle.file)
        stored.write_bytes(stored.read_bytes()[:left])
        with pytest.raises(RefusedByAgent) as refused:
            await pair.send(job)
        assert refused.value.code == "invalid_bundle"
