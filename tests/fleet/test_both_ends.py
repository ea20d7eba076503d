"""A server's client of an agent and the agent itself, over HTTP."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from aiohttp import web

from client_agent.api import bulk
from client_agent.api.routes import Api
from client_agent.intake import orders
from client_agent.intake.admission import Admission
from client_agent.payloads.errors import Refused
from server.agents import ferryman_agent
from server.agents.agent import Sessions
from server.agents.answers import MAX_RESULT
from server.agents.ferryman_agent import QUICK_MS, FerrymanAgent
from server.domain.agents import RefusedByAgent
from server.domain.jobs import Bundle, Job
from server.domain.service import Service
from server.storage.contents import Contents
from shared.clock import RealClock, yield_to_loop
from shared.ids import Start
from shared.wire import JobState, PayloadDoc, PayloadsRequest, PayloadState
from tests.kit.agent_http import LIMITS, SERVER, AgentClient, calling
from tests.kit.store import job
from tests.kit.warm import together


@dataclass
class Pair:
    """Both ends, and a bundle that is in memory."""

    agent: AgentClient
    client: FerrymanAgent
    bundle: Bundle

    def jobs(self, count: int) -> list[Job]:
        return [
            job(
                id=number,
                state=JobState.PROCESSING,
                service="example",
                bundle=self.bundle,
                limits=LIMITS,
            )
            for number in range(1, count + 1)
        ]

    async def send(self, *jobs: Job) -> list[PayloadDoc]:
        given = Service("example")
        return list(await asyncio.gather(*(self.client.submit(job, given) for job in jobs)))

    async def run(self, *jobs: Job) -> list[PayloadDoc]:
        """Send them, let each end, and return their documents."""
        sent = await self.send(*jobs)
        await self.agent.sandbox.finish(*(str(job.key) for job in jobs))
        return [PayloadDoc.model_validate(await self.agent.ended(one.id)) for one in sent]


@asynccontextmanager
async def connected(tmp_path: Any) -> AsyncIterator[Pair]:
    nowhere: Any = None
    contents = Contents(nowhere, nowhere, AsyncMock(return_value=None))
    async with calling(tmp_path, slots=20) as agent, aiohttp.ClientSession() as http:
        sessions = Sessions(http, http, contents)
        client = FerrymanAgent(
            "node", agent.url, sessions, RealClock(), server=SERVER, start=Start(3, "a")
        )
        client.unreachable = ""
        data, digest = agent.bundle({"run.sh": b"true"})
        yield Pair(agent, client, Bundle("", len(data), digest, content=data))


def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Numbers of orders and of acknowledgements in each that the agent gets."""
    made = list[tuple[int, int]]()
    parse = orders.parse_head

    def count(line: bytes) -> PayloadsRequest:
        head = parse(line)
        made.append((len(head.orders), len(head.acknowledge)))
        return head

    monkeypatch.setattr(bulk, "parse_head", count)
    return made


def results_at(home: Path) -> set[int]:
    """Payloads whose results the agent has."""
    with closing(sqlite3.connect(home / "agent" / "agent.sqlite")) as database:
        return {row[0] for row in database.execute("SELECT payload_id FROM results")}


async def test_single_jobs_share_requests_with_what_is_acknowledged(tmp_path, monkeypatch) -> None:
    made = requests(monkeypatch)
    async with connected(tmp_path) as pair:
        jobs = pair.jobs(20)
        ended = await pair.run(*jobs[:10])
        assert [one.status for one in ended] == [PayloadState.COMPLETED] * 10
        assert len(made) < 10
        forgotten = [asyncio.create_task(pair.client.acknowledge(e.id, e.key)) for e in ended]
        await yield_to_loop()
        await pair.run(*jobs[10:])
        await asyncio.gather(*forgotten)
        assert (sum(one for _, one in made), 0 in [one for one, _ in made]) == (10, False)
        assert results_at(tmp_path).isdisjoint(one.id for one in ended)


async def test_an_agent_that_takes_no_orders_takes_the_acknowledgements_beside_them(
    tmp_path, monkeypatch
) -> None:
    async with connected(tmp_path) as pair:
        jobs = pair.jobs(3)
        ended = await pair.run(*jobs[:2])
        forgotten = [asyncio.create_task(pair.client.acknowledge(e.id, e.key)) for e in ended]
        await yield_to_loop()

        async def draining(*_: object) -> None:
            raise Refused(503, "draining", "it drains")

        monkeypatch.setattr(Admission, "check_ready", draining)
        made = requests(monkeypatch)
        with pytest.raises(RefusedByAgent) as no:
            await pair.send(jobs[2])
        assert (no.value.code, no.value.final) == ("draining", False)
        await asyncio.gather(*forgotten)
        assert made == [(1, 2)]
        assert results_at(tmp_path) == set()


async def test_a_large_bundle_goes_by_itself(tmp_path, monkeypatch) -> None:
    made = requests(monkeypatch)
    monkeypatch.setattr(ferryman_agent, "_SMALL", 10)
    monkeypatch.setattr(bulk, "MAX_SMALL", 10)
    async with connected(tmp_path) as pair:
        await pair.run(*pair.jobs(2))
        assert made == [(1, 0)] * 2


async def test_a_small_result_comes_on_the_stream_and_is_not_asked_for(
    tmp_path, monkeypatch
) -> None:
    seen = list[web.Request]()
    for name in ("events", "retrieve", "retrieve_partial"):
        handler = getattr(Api, name)

        async def note(api: Api, request: web.Request, handler=handler) -> Any:
            seen.append(request)
            return await handler(api, request)

        monkeypatch.setattr(Api, name, note)
    async with together(tmp_path) as system:
        job_id = await system.upload()
        process = await system.process(job_id)
        process.write("out.txt", b"new")
        process.finish()
        assert (await system.job(job_id))["status"] == "Completed"
        assert b"out.txt" in (await system.get(f"/api/v1/jobs/{job_id}/result"))[2]
    asked = {(one.path, one.query.get("results"), one.query.get("quick_ms")) for one in seen}
    assert asked == {("/events", str(MAX_RESULT), str(QUICK_MS))}
