"""Events over HTTP: pages, and streams that browsers follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from server.http import event_stream
from server.store import events
from shared.http import connections
from shared.wire import EventDoc
from tests.kit.fake_agent import FakeAgent, HeldPayload, serving
from tests.kit.server_http import ServerClient
from tests.kit.waiting import until

SSE = {"Accept": "text/event-stream"}
LIVE = {
    "progress": {"current": 45, "total": 100},
    "message": "step 45",
    "output": {"score": "0.93"},
    "heartbeat_at": "2026-01-01T00:00:00Z",
    "notices": [{"level": "warning", "text": "hm", "at": "2026-01-01T00:00:00Z"}],
}
MOVES = ["job.queued", "job.processing", "job.submitted", "job.running"]
SAID = ["job.warning", "job.output", "job.progress"]


@dataclass
class Message:
    """One of a stream; ``event`` is empty for a comment."""

    id: int = 0
    event: str = ""
    data: Any = None


@asynccontextmanager
async def followed(
    caller: ServerClient, path: str, headers: Mapping[str, str] = SSE
) -> AsyncIterator[tuple[aiohttp.ClientResponse, AsyncIterator[Message]]]:
    async with caller.session.get(f"{caller.url}{path}", headers={**SSE, **headers}) as answer:
        yield answer, _messages(answer)


async def _messages(answer: aiohttp.ClientResponse) -> AsyncIterator[Message]:
    found = Message()
    async for line in answer.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        match name:
            case "id":
                found.id = int(value)
            case "event":
                found.event = value
            case "data":
                found.data = json.loads(value)
            case "":
                if found.event or line != b"\n":
                    yield found
                found = Message()


async def page(caller: ServerClient, path: str) -> dict[str, Any]:
    status, _, body = await caller.get(path)
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


async def end(agent: FakeAgent, held: HeldPayload, status: str = "Completed") -> None:
    held.status, held.result, held.more = status, b"PK", {"live": LIVE}
    await agent.say(held)


@asynccontextmanager
async def a_running_job(
    tmp_path, **server: Any
) -> AsyncIterator[tuple[ServerClient, FakeAgent, HeldPayload, int]]:
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent, **server) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        yield caller, agent, agent.held(f"{job_id}.1"), job_id


async def test_what_a_running_job_says_is_seen_in_its_document_and_its_stream(tmp_path) -> None:
    async with a_running_job(tmp_path) as (caller, agent, held, job_id):
        path = f"/api/v1/jobs/{job_id}/events"
        async with followed(caller, path) as (answer, messages):
            assert answer.content_type == "text/event-stream"
            assert answer.headers["X-Accel-Buffering"] == "no"
            assert answer.headers["Cache-Control"] == "no-cache"
            assert [(await anext(messages)).event for _ in MOVES] == MOVES
            held.more = {"live": LIVE}
            await agent.say(held)
            said = [await anext(messages) for _ in SAID]
            assert [one.event for one in said] == SAID
            assert said[-1].data["fields"] == {"current": 45.0, "total": 100.0}
            assert EventDoc.model_validate(said[0].data).level == "warning"
            assert (said[0].data["agent"], said[0].data["job_id"]) == ("fake", job_id)
            job = await page(caller, f"/api/v1/jobs/{job_id}")
            assert (job["progress"], job["message"]) == ({"current": 45, "total": 100}, "step 45")
            assert (job["output"], job["status"]) == ({"score": "0.93"}, "Running")
            assert job["heartbeat_at"].startswith("2026-01-01T00:00:00")
            await end(agent, held)
            assert [one.event async for one in messages] == ["job.completed"]
        assert [one["seq"] for one in (await page(caller, path))["items"]] == [*range(1, 9)]
        async with followed(caller, path, {"Last-Event-ID": "7"}) as (_, messages):
            assert [one.event async for one in messages] == ["job.completed"]
        async with followed(caller, path, {"Last-Event-ID": "8"}) as (answer, _):
            assert answer.status == 204  # a browser does not connect again
        async with followed(caller, f"{path}?after=6") as (_, messages):
            assert [one.id async for one in messages] == [7, 8]


async def test_what_run_sh_names_and_gives_as_json_is_stored_as_given(tmp_path) -> None:
    at = "2026-01-01T00:00:00Z"
    table = {"rows": [3, 2.5], "done": True}
    said = {
        "output": {"score": "0.93", "table": json.dumps(table), "bad": "[" * 99},
        "json_outputs": ["table", "bad"],
        "notices": [
            {"level": "notice", "text": "x", "at": at, "fields": {"page": "3"}},
            {
                "level": "info",
                "text": "y",
                "at": at,
                "event": "pages.done",
                "fields": {"page": "4"},
            },
            {"level": "info", "text": "z", "at": at, "event": "job.completed"},
        ],
    }
    async with a_running_job(tmp_path) as (caller, agent, held, job_id):
        held.more = {"live": said}
        await agent.say(held)
        events = f"/api/v1/jobs/{job_id}/events"
        first = await page(caller, f"{events}?after=4&wait=60")
        held.status, held.result = "Completed", b"PK"
        await agent.say(held)  # which repeats it
        job = await page(caller, f"/api/v1/jobs/{job_id}?wait=60")
        assert job["output"] == {"score": "0.93", "table": table, "bad": "[" * 99}
        assert job["attempts"][0]["output"] == job["output"]
        items = (await page(caller, f"{events}?after=4"))["items"]
        assert [one["seq"] for one in items[:-1]] == [one["seq"] for one in first["items"]]
        shown = [(one["event"], one["source"], one["fields"]) for one in items]
        assert shown == [
            ("job.notice", None, {"page": "3"}),
            ("pages.done", "run.sh", {"page": "4"}),
            ("job.info", None, {}),
            ("job.output", None, {"name": "score", "value": "0.93"}),
            ("job.output", None, {"name": "table", "value": table}),
            ("job.output", None, {"name": "bad", "value": "[" * 99}),
            ("job.completed", None, {}),
        ]
        status, _, body = await caller.get(f"/jobs/{job_id}")
        assert status == 200
        assert body.count(b"<code>page=3</code>") == body.count(b"<code>page=4</code>") == 2
        assert body.count(b"<code>pages.done</code>") == 2
        assert b"delay_s" not in body


async def test_pages_of_a_history_say_where_the_next_begins(tmp_path) -> None:
    async with a_running_job(tmp_path) as (caller, _, _, job_id):
        path = f"/api/v1/jobs/{job_id}/events"
        one = await page(caller, f"{path}?limit=3")
        assert ([item["event"] for item in one["items"]], one["next"]) == (MOVES[:3], "3")
        two = await page(caller, f"{path}?limit=3&after={one['next']}")
        assert ([item["event"] for item in two["items"]], two["next"]) == (MOVES[3:], None)
        assert (await page(caller, f"{path}?after={two['reached']}"))["items"] == []
        for query in ("limit=0", "limit=1001", "after=-1", "after=x"):
            status, _, body = await caller.get(f"{path}?{query}")
            assert status == 400, body


async def test_a_page_waits_for_what_is_no_move(tmp_path) -> None:
    async with a_running_job(tmp_path) as (caller, agent, held, job_id):
        waiting = asyncio.create_task(page(caller, f"/api/v1/jobs/{job_id}/events?after=4&wait=60"))
        all_waiting = asyncio.create_task(page(caller, "/api/v1/events?after=now&wait=60"))
        await until(lambda: sum(caller.server.gate._waits.values()) == 2)
        held.more = {"live": LIVE}
        await agent.say(held)
        assert [one["event"] for one in (await waiting)["items"]] == SAID
        assert [one["event"] for one in (await all_waiting)["items"]] == SAID


async def test_all_events_at_once_from_now_on(tmp_path) -> None:
    async with a_running_job(tmp_path) as (caller, agent, held, first):
        async with followed(caller, "/api/v1/events") as (_, messages):
            second = await caller.upload()
            seen = [await anext(messages) for _ in MOVES]
            assert [(one.data["job_id"], one.event) for one in seen] == [
                (second, event) for event in MOVES
            ]
            await end(agent, held)
            seen = [await anext(messages) for _ in range(3)]
            assert {one.data["job_id"] for one in seen} == {first}
        found = await page(caller, "/api/v1/events?limit=500")
        assert [one["seq"] for one in found["items"]] == [*range(1, 12)]
        assert (found["next"], found["reached"]) == (None, 11)
        async with followed(caller, "/api/v1/events?after=0&user=7") as (_, messages):
            assert [(await anext(messages)).id for _ in range(11)] == [*range(1, 12)]


async def test_a_page_of_all_events_looks_at_a_bounded_number(tmp_path, monkeypatch) -> None:
    async with a_running_job(tmp_path) as (caller, _, _, _):
        monkeypatch.setattr(events, "_SLICE", 3)
        for query in ("user=nobody", "service=another"):
            one = await page(caller, f"/api/v1/events?{query}")
            assert (one["items"], one["next"]) == ([], "3")
            two = await page(caller, f"/api/v1/events?{query}&after=3")
            assert (two["items"], two["next"], two["reached"]) == ([], None, 4)
        status, _, body = await caller.get("/api/v1/events?job=1")
        assert (status, json.loads(body)["code"]) == (400, "unknown_parameter")
        async with followed(caller, "/api/v1/events", {"Last-Event-ID": "x"}) as (answer, _):
            assert (answer.status, (await answer.json())["part"]) == (400, "Last-Event-ID")


async def test_a_stream_says_something_now_and_then_and_ends_with_the_server(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(event_stream, "KEEPALIVE_S", 0.05)
    async with (
        a_running_job(tmp_path) as (caller, _, _, job_id),
        followed(caller, f"/api/v1/jobs/{job_id}/events?after=4") as (_, messages),
    ):
        assert [(await anext(messages)).event for _ in range(3)] == [""] * 3
        caller.server.wakeups.close()
        assert {one.event async for one in messages} <= {""}


async def test_a_stream_about_an_unknown_job_is_refused(tmp_path) -> None:
    async with (
        serving(tmp_path) as caller,
        followed(caller, "/api/v1/jobs/99/events") as (answer, _),
    ):
        assert (answer.status, answer.content_type) == (404, "application/problem+json")


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/jobs/1/events?after=4"])
async def test_open_streams_are_counted_as_waits(tmp_path, monkeypatch, path: str) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    async with a_running_job(tmp_path) as (caller, _, _, _):
        most = caller.server.gate._limits.waits_per_caller
        open_ = [followed(caller, path) for _ in range(most)]
        for one in open_:
            await one.__aenter__()
        async with followed(caller, path) as (answer, _):
            assert answer.status == 429
            assert (await answer.json())["code"] == "too_many_waits"
        for one in open_:
            await one.__aexit__(None, None, None)
        await until(lambda: not caller.server.gate._waits)
        async with followed(caller, path) as (answer, _):
            assert answer.status == 200


async def test_the_document_of_a_job_says_how_long_it_was_in_which_state(tmp_path) -> None:
    async with a_running_job(tmp_path) as (caller, agent, held, job_id):
        held.more = {"live": LIVE}
        await end(agent, held, "Failed")
        await caller.job(job_id)
        job = await page(caller, f"/api/v1/jobs/{job_id}")
        states = [(one["status"], one["attempt"], one["agent"]) for one in job["history"]]
        assert states == [
            ("Queued", 0, None),
            ("Processing", 1, "fake"),
            ("Submitted", 1, "fake"),
            ("Running", 1, "fake"),
            ("Failed", 1, "fake"),
        ]
        assert all(one["seconds"] >= 0 for one in job["history"])
        (attempt,) = job["attempts"]
        assert (attempt["number"], attempt["progress"]) == (1, {"current": 45, "total": 100})
        (listed,) = (await page(caller, "/api/v1/jobs"))["items"]
        assert (listed["history"], listed["attempts"]) == (None, None)
