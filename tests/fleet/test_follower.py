"""Keeping in touch with one agent, on simulated time over real HTTP; how long its answer to a
bundle is waited for; and the client of an agent with the agent itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import aiohttp
import pytest
from aiohttp import web

from client_agent.api import bulk
from client_agent.api.routes import Api
from client_agent.intake import orders
from server.agents import ferryman_agent
from server.agents.agent import Body, Sessions
from server.agents.answers import MAX_RESULT
from server.agents.ferryman_agent import QUICK_MS, FerrymanAgent
from server.agents.registry import Registry
from server.domain.agents import Unreachable
from server.domain.jobs import Bundle, FileKind, Job
from server.domain.service import Service
from server.fleet import Follower
from server.stages.agents import Agents
from server.stages.get import Get
from server.storage.contents import Contents
from server.storage.scratch import LocalStream
from shared.clock import RealClock, yield_to_loop
from shared.files.opened import opened
from shared.ids import Start
from shared.wire import START, AgentHealth, JobState, PayloadDoc, PayloadsRequest, PayloadState
from tests.kit.agent_http import LIMITS, SERVER, AgentClient, calling
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.fake_agent import FakeAgent, HeldPayload, Trick, is_intake, page
from tests.kit.store import core, job
from tests.kit.waiting import until
from tests.kit.warm import together


class Following:
    def __init__(self, agent: FakeAgent, session: aiohttp.ClientSession) -> None:
        self.clock, self.agent = SimClock(), agent
        sessions = Sessions(session, session, cast(Contents, PathsAsNames()))
        self.client = FerrymanAgent(
            "fake", agent.url, sessions, self.clock, server="sim", start=Start(7, "a")
        )
        self.registry = Registry([self.client], self.clock)
        self.seen: asyncio.Queue[str] = asyncio.Queue()
        self.changes = 0
        self.room = asyncio.Event()
        self.room.set()

        def changed() -> None:
            self.changes += 1

        get, agents = cast(Get, self), cast(Agents, self)
        wakeups = SimpleNamespace(agent_changed=changed)
        parts = core(registry=self.registry, clock=self.clock, wakeups=wakeups)
        self.follower = Follower(self.client, parts, get, agents)

    async def contacted(self, name: str, health: AgentHealth) -> None:
        assert (name, health.agent) == ("fake", "fake")

    async def reconcile(self, _: Any, pages: Any) -> None:
        async for one in pages:
            for payload in one.payloads:
                self.seen.put_nowait(f"listed {payload.key}")
        self.seen.put_nowait("compared")

    async def receive(self, _: Any, payload: Any, result: bytes | None, size: int) -> None:
        self.seen.put_nowait(f"reported {payload.key} {payload.status}")
        await self.room.wait()

    async def see(self, *what: str) -> None:
        assert [await self.seen.get() for _ in what] == list(what)

    async def hear(self) -> None:
        """What the agent said before this has been read."""
        await self.agent.end(HeldPayload(2, "sim", "2.1", None))
        await self.see("reported 2.1 Completed")

    async def heartbeat_after(self, health: AgentHealth | None) -> None:
        await until(lambda: self.client.health is not health)

    async def work(self) -> tuple[bool, bool]:
        """Whether it can be talked to and may get jobs, ten seconds later: its stream is open."""
        await self.clock.until_asleep(10.0)
        asked = self.agent.calls["GET /health"]
        await self.clock.advance(10.0)
        await self.agent.until(lambda: self.agent.calls["GET /health"] > asked)
        await self.clock.until_asleep(10.0)
        return self.client.reachable, self.client.accepts_work


@asynccontextmanager
async def following(agent: FakeAgent) -> AsyncIterator[Following]:
    async with agent.listening(), aiohttp.ClientSession() as session:
        found = Following(agent, session)
        task = asyncio.create_task(found.follower.run())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def followed(agent: FakeAgent) -> AsyncIterator[Following]:
    """It was compared, and its stream is open."""
    async with following(agent) as found:
        await found.see("compared")
        await agent.followed()
        yield found


async def test_health_is_asked_while_the_stream_is_open_and_work_goes_by_it():
    agent, nothing = FakeAgent(), page(404)

    async def no_health(request: web.Request) -> web.StreamResponse | None:
        return await nothing(request) if request.path == "/health" else None

    async with followed(agent) as found:
        agent.well = False
        assert await found.work() == (True, False)
        agent.well = True
        assert await found.work() == (True, True)
        assert found.changes == 3, "waiting callers are woken each time"
        agent.trick = no_health
        assert await found.work() == (True, False)
        await found.hear()
        assert agent.calls["GET /events"] == 1


async def test_an_agent_that_dies_while_its_stream_is_not_read_is_down_all_the_same():
    agent = FakeAgent()
    async with followed(agent) as found:
        found.room.clear()
        await found.hear()
        agent.trick = page(502)
        assert not (await found.work())[0]
        agent.trick = None
        assert await found.work() == (True, True)


async def test_a_stream_that_ends_is_opened_again_after_a_comparison():
    agent = FakeAgent()
    agent.payloads[1] = HeldPayload(1, "sim", "1.1", None)
    async with following(agent) as found:
        for _ in range(3):
            await found.see("listed 1.1", "compared")
            await agent.followed()
            assert agent.calls["GET /events"] == found.client.contacts
            await found.clock.advance(5.0)
            agent.hang_up()
            await found.clock.until_asleep(0.1)
            assert found.registry.unreachable_s("fake") == 0.0
            await found.clock.advance(0.1)
        await found.see("listed 1.1", "compared")
        assert found.client.contacts == 4


async def test_an_agent_that_is_not_there_is_asked_less_and_less_often():
    agent = FakeAgent(trick=page(502))
    async with following(agent) as found:
        for delay in (0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0):
            await found.clock.until_asleep(delay)
            await found.clock.advance(delay)
        await found.clock.until_asleep(5.0)
        assert agent.calls["GET /health"] == 8
        assert "502" in found.client.trouble
        agent.trick = None
        await found.clock.advance(5.0)
        await found.see("compared")
        assert found.client.accepts_work


def events(lines: bytes, until: asyncio.Event | None = None) -> Trick:
    """An event stream of these bytes, open until something is so."""

    async def trick(request: web.Request) -> web.StreamResponse | None:
        if request.path != "/events":
            return None
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(lines)
        if until is not None:
            await until.wait()
        return answer

    return trick


async def test_a_line_with_as_much_as_a_bundle_may_say_is_read():
    live = {"output": {f"n{n}": '"' * 4096 for n in range(60)}}
    payload = {"id": 1, "status": "Running", "server": "sim", "key": "1.1", "live": live}
    line = json.dumps({"seq": 1, "payload": payload}).encode() + b"\n"
    assert len(line) > 400_000
    over = asyncio.Event()
    async with following(FakeAgent(trick=events(line, over))) as found:
        await found.see("compared", "reported 1.1 Running")
        over.set()


@pytest.mark.parametrize("lines", [b"", b"x" * (2 << 20)], ids=["it ends", "a line without end"])
async def test_a_stream_that_breaks_at_once_is_opened_less_and_less_often(lines):
    agent = FakeAgent(trick=events(lines))
    async with following(agent) as found:
        for delay in (0.2, 0.5, 1.0, 2.0, 5.0, 5.0):
            await found.see("compared")
            await found.clock.until_asleep(delay)
            assert isinstance(found.client.unreachable, str)
            assert "communication failed" not in found.client.unreachable, "no fault of ours"
            await found.clock.advance(delay)


async def test_an_agent_that_has_seen_a_later_start_is_left_alone():
    agent = FakeAgent()

    async def trick(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("/settle"):
            return None
        assert request.headers[START] == "7-a"
        return web.json_response({"code": "stale_start", "message": "7-a is stale"}, status=409)

    agent.trick = trick
    async with followed(agent) as found:
        with pytest.raises(Unreachable, match="a copy of this data folder") as caught:
            await found.client.settle(job())
        assert not caught.value.sent, "it has taken nothing"
        await found.clock.settle()
        assert not found.client.reachable
        assert "another server" in found.client.trouble
        asked = agent.calls["GET /health"]
        await found.clock.advance(3_600.0)
        assert agent.calls["GET /health"] == asked
        assert found.registry.unreachable_s("fake") == 3_600.0


async def test_slots_and_load_are_as_the_latest_heartbeat_says_and_more_slots_get_jobs():
    """One that begins to drain is asked for its health at once."""
    agent = FakeAgent()
    async with followed(agent) as found:
        for load in (12.5, 90.0):
            await agent.beat(slots=4, running=3, load=load)
        await agent.beat(slots=6, running=4)
        await found.hear()
        health = found.client.health
        assert health is not None
        assert (health.slots, health.running, health.load) == (6, 4, 90.0)
        assert found.changes == 2, "the Sender is woken"
        asked = agent.calls["GET /health"]
        await agent.beat(draining=True)
        await agent.until(lambda: agent.calls["GET /health"] == asked + 1)


async def test_an_agent_without_a_heartbeat_for_two_seconds_is_silent_until_the_next():
    agent = FakeAgent()
    async with followed(agent) as found:

        async def silent_after(seconds: float) -> float | None:
            await found.clock.advance(seconds)
            return found.registry.silent_s(found.client)

        assert await silent_after(3.0) is None, "an older agent sends none"
        for _ in range(2):
            before = found.client.health
            await agent.beat()
            await found.heartbeat_after(before)
            assert await silent_after(2.0) is None
            assert await silent_after(2.0) == 4.0
            assert (found.client.reachable, found.client.accepts_work) == (True, True)
        found.room.clear()
        await found.hear()
        assert await silent_after(4.0) is None, "nobody listens for heartbeats"
        found.registry.mark_down(found.client, "away")
        assert await silent_after(4.0) is None


async def test_an_agent_that_hangs_is_down_when_its_heartbeats_stop(monkeypatch):
    monkeypatch.setattr(ferryman_agent, "SILENT_S", 0.05)
    agent = FakeAgent()
    async with followed(agent) as found:
        await agent.beat()
        await agent.until(lambda: agent.streams == 0)
        await found.clock.until_asleep(0.2)
        assert "no answer in time" in found.client.unreachable


# -- a bundle


class PathsAsNames:
    @asynccontextmanager
    async def open(self, _: FileKind, bundle: Bundle) -> AsyncIterator[LocalStream]:
        async with opened(partial(LocalStream, Path(bundle.file))) as stream:
            yield stream


@asynccontextmanager
async def sending(
    folder: Path, *, stuck: bool = False, size: int = 32 << 20
) -> AsyncIterator[tuple[Following, asyncio.Task[Any], asyncio.Event]]:
    """A bundle is under way to an agent on a slow disk. That takes the whole body unless it is
    stuck, and answers once the event is set.
    """
    agent, taken, done = FakeAgent(ends="Running"), asyncio.Event(), asyncio.Event()
    bundle = folder / "bundle"
    with bundle.open("wb") as file:
        file.truncate(size)

    async def slow(request: web.Request) -> web.StreamResponse | None:
        if not is_intake(request):
            return None
        answer = None if stuck else await agent.submit(request)
        taken.set()
        await done.wait()
        return answer

    async with followed(agent) as found:
        agent.trick = slow
        stored = Bundle(str(bundle), size, "d" * 64)
        submit = asyncio.create_task(found.client.submit(job(bundle=stored), Service("s")))
        await taken.wait()
        yield found, submit, done
        done.set()


async def test_an_agent_that_has_it_may_take_all_the_time_it_needs(tmp_path):
    async with sending(tmp_path) as (found, submit, done):
        (body,) = found.client._posts
        assert (body.sent, body.patience.when()) == (True, None)
        done.set()
        assert ((await submit).key, found.agent.calls["POST /payloads"]) == ("7.1", 1)


@each("size, back", [(32 << 20, False), (32 << 20, True), (100, False), (100, True)])
async def test_an_agent_that_went_away_meanwhile_may_have_it(tmp_path, size, back):
    """Or that was away already when the bundle was sent, and is back."""
    async with sending(tmp_path, size=size) as (found, submit, _):
        if back:
            found.client.unreachable = "gone"
            found.registry.mark_up(found.client, await found.client.ask_health())
        else:
            found.registry.mark_down(found.client, "gone")
        with pytest.raises(Unreachable, match="went away before it answered") as problem:
            await submit
        assert problem.value.sent


async def test_an_agent_that_stops_taking_a_bundle_does_not_have_it(tmp_path, monkeypatch):
    monkeypatch.setattr("server.agents.agent._STALLED_S", 0.5)
    async with sending(tmp_path, stuck=True) as (_, submit, _):
        with pytest.raises(Unreachable, match="stopped taking the bundle") as problem:
            await submit
        assert not problem.value.sent


async def test_what_is_given_up_is_not_waited_for_when_one_more_chunk_is_taken() -> None:
    async def source() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"chunk"

    body = Body("", 1 << 20, source())
    with suppress(TimeoutError):
        async with asyncio.timeout(5), body.patience:
            chunks = body.chunks()
            await anext(chunks)
            body.give_up("it was taken out of the settings")
            await anext(chunks)
            await asyncio.Event().wait()
    assert body.patience.expired()


async def test_a_bundle_that_gets_no_connection_is_not_sent_for_ever(tmp_path, monkeypatch):
    async with sending(tmp_path) as (found, submit, _):
        monkeypatch.setattr("server.agents.agent._STALLED_S", 0.2)
        connector = found.client._sessions.transfers.connector
        monkeypatch.setattr(connector, "_available_connections", lambda _: 0)
        stored = Bundle(str(tmp_path / "bundle"), 32 << 20, "e" * 64)
        with pytest.raises(Unreachable, match="stopped taking") as problem:
            await asyncio.wait_for(found.client.submit(job(id=8, bundle=stored), Service("s")), 5)
        assert not problem.value.sent
        submit.cancel()


# -- the client and the agent itself


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
        assert pair.agent.database is not None
        kept = {row[0] for row in pair.agent.database.execute("SELECT payload_id FROM results")}
        assert kept.isdisjoint(one.id for one in ended)


async def test_a_large_bundle_goes_by_itself(tmp_path, monkeypatch) -> None:
    made = requests(monkeypatch)
    monkeypatch.setattr(ferryman_agent, "SMALL", 10)
    monkeypatch.setattr(bulk, "MAX_SMALL", 10)
    async with connected(tmp_path) as pair:
        await pair.run(*pair.jobs(2))
        assert made == [(1, 0)] * 2


async def test_a_small_result_comes_on_the_stream_and_is_not_asked_for(tmp_path, monkeypatch):
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
