"""Events over HTTP: pages, and streams that browsers follow."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from server.http import event_stream
from server.store import events
from shared.http import connections
from shared.wire import EventDoc
from tests.kit.fake_agent import Served, served
from tests.kit.server_http import ServerClient
from tests.kit.waiting import until
from tests.server.held_jobs import followed, running

__all__ = ["served"]
pytestmark = pytest.mark.asyncio(loop_scope="module")
AT = "2026-01-01T00:00:00Z"
LIVE = {
    "progress": {"current": 45, "total": 100},
    "message": "step 45",
    "output": {"score": "0.93"},
    "heartbeat_at": AT,
    "notices": [{"level": "warning", "text": "hm", "at": AT}],
}
MOVES = ["job.queued", "job.processing", "job.submitted", "job.running"]
SAID = ["job.warning", "job.output", "job.progress"]


async def page(caller: ServerClient, path: str) -> dict[str, Any]:
    status, _, body = await caller.get(path)
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [one["event"] for one in found["items"]]


async def test_what_a_running_job_says_is_seen_in_its_stream_and_in_pages(served: Served) -> None:
    async with running(served, retries="0") as here:
        caller, held, path = here.caller, here.held(), f"{here.path}/events"
        waiting = asyncio.create_task(page(caller, f"{path}?after=4&wait=60"))
        await until(lambda: sum(caller.server.gate._waits.values()) == 1)
        async with followed(caller, path) as (answer, messages):
            assert answer.content_type == "text/event-stream"
            assert answer.headers["X-Accel-Buffering"] == "no"
            assert answer.headers["Cache-Control"] == "no-cache"
            assert [(await anext(messages)).event for _ in MOVES] == MOVES
            held.more = {"live": LIVE}
            await here.agent.say(held)
            said = [await anext(messages) for _ in SAID]
            assert [one.event for one in said] == names(await waiting) == SAID
            assert said[-1].data["fields"] == {"current": 45.0, "total": 100.0}
            assert EventDoc.model_validate(said[0].data).level == "warning"
            assert (said[0].data["agent"], said[0].data["job_id"]) == ("fake", here.job_id)
            job = await page(caller, here.path)
            assert job["heartbeat_at"].startswith("2026-01-01T00:00:00")
            await here.end("", live=LIVE)
            assert [one.event async for one in messages] == ["job.completed"]

        whole = await page(caller, path)
        numbers = [one["seq"] for one in whole["items"]]
        one = await page(caller, f"{path}?limit=3")
        assert (names(one), one["next"]) == (MOVES[:3], str(numbers[2]))
        two = await page(caller, f"{path}?limit=5&after={one['next']}")
        assert (names(two), two["next"]) == ([MOVES[3], *SAID, "job.completed"], None)
        assert (await page(caller, f"{path}?after={two['reached']}"))["items"] == []
        for query in ("limit=0", "limit=1001", "after=-1", "after=x"):
            assert (await caller.get(f"{path}?{query}"))[0] == 400, query

        async with followed(caller, path, {"Last-Event-ID": str(numbers[-2])}) as (_, messages):
            assert [one.event async for one in messages] == ["job.completed"]
        async with followed(caller, path, {"Last-Event-ID": str(numbers[-1])}) as (answer, _):
            assert answer.status == 204  # a browser does not connect again
        async with followed(caller, f"{path}?after={numbers[-3]}") as (_, messages):
            assert [one.id async for one in messages] == numbers[-2:]

        history = (await caller.job(here.job_id))["history"]
        assert [(one["status"], one["attempt"], one["agent"]) for one in history] == [
            ("Queued", 0, None),
            *((state, 1, "fake") for state in ("Processing", "Submitted", "Running", "Completed")),
        ]
        assert all(one["seconds"] >= 0 for one in history)
        listed = (await page(caller, "/api/v1/jobs?limit=1"))["items"][0]
        assert (listed["history"], listed["attempts"]) == (None, None)
    here.job_id = 9_999
    async with followed(caller, f"{here.path}/events") as (answer, _):
        assert (answer.status, answer.content_type) == (404, "application/problem+json")


async def test_what_run_sh_names_and_gives_as_json_is_stored_as_given(served: Served) -> None:
    table = {"rows": [3, 2.5], "done": True}
    notices: list[dict[str, Any]] = [
        {"level": "notice", "text": "x", "fields": {"page": "3"}},
        {"level": "info", "text": "y", "event": "pages.done", "fields": {"page": "4"}},
        {"level": "info", "text": "z", "event": "job.completed"},
    ]
    said = {
        "output": {"score": "0.93", "table": json.dumps(table), "bad": "[" * 99},
        "json_outputs": ["table", "bad"],
        "notices": [one | {"at": AT} for one in notices],
    }
    async with running(served) as here:
        held, caller = here.held(), here.caller
        path = f"{here.path}/events?after={(await here.document('events'))['reached']}"
        held.more = {"live": said}
        await here.agent.say(held)
        first = await page(caller, f"{path}&wait=60")
        await here.end("", live=said)  # which repeats it
        job = await caller.job(here.job_id)
        assert job["output"] == {"score": "0.93", "table": table, "bad": "[" * 99}
        assert job["attempts"][0]["output"] == job["output"]
        items = (await page(caller, path))["items"]
        assert [one["seq"] for one in items[:-1]] == [one["seq"] for one in first["items"]]
        assert [(one["event"], one["source"], one["fields"]) for one in items] == [
            ("job.notice", None, {"page": "3"}),
            ("pages.done", "run.sh", {"page": "4"}),
            ("job.info", None, {}),
            ("job.output", None, {"name": "score", "value": "0.93"}),
            ("job.output", None, {"name": "table", "value": table}),
            ("job.output", None, {"name": "bad", "value": "[" * 99}),
            ("job.completed", None, {}),
        ]
        status, _, body = await caller.get(f"/jobs/{here.job_id}")
        assert status == 200
        assert body.count(b"<code>page=3</code>") == body.count(b"<code>page=4</code>") == 2
        assert body.count(b"<code>pages.done</code>") == 2
        assert b"delay_s" not in body


async def test_all_events_are_read_from_the_first_or_from_now_on(tmp_path, monkeypatch) -> None:
    async with running(tmp_path) as here:
        caller, first = here.caller, here.job_id
        async with followed(caller, "/api/v1/events") as (_, messages):
            second = await caller.upload()
            seen = [await anext(messages) for _ in MOVES]
            assert [(one.data["job_id"], one.event) for one in seen] == [
                (second, event) for event in MOVES
            ]
            waiting = asyncio.create_task(page(caller, "/api/v1/events?after=now&wait=60"))
            await until(lambda: sum(caller.server.gate._waits.values()) == 2)
            await here.end("", live=LIVE)
            assert {(await anext(messages)).data["job_id"] for _ in range(3)} == {first}
            assert names(await waiting)[:2] == SAID[:2]
        found = await page(caller, "/api/v1/events?limit=500")
        assert [one["seq"] for one in found["items"]] == [*range(1, 12)]
        assert (found["next"], found["reached"]) == (None, 11)
        async with followed(caller, "/api/v1/events?after=0&user=7") as (_, messages):
            assert [(await anext(messages)).id for _ in range(11)] == [*range(1, 12)]

        monkeypatch.setattr(events, "_SLICE", 7)  # so many are looked at
        for query in ("user=nobody", "service=another"):
            one = await page(caller, f"/api/v1/events?{query}")
            assert (one["items"], one["next"]) == ([], "7")
            two = await page(caller, f"/api/v1/events?{query}&after=7")
            assert (two["items"], two["next"], two["reached"]) == ([], None, 11)
        status, _, body = await caller.get("/api/v1/events?job=1")
        assert (status, json.loads(body)["code"]) == (400, "unknown_parameter")
        async with followed(caller, "/api/v1/events", {"Last-Event-ID": "x"}) as (answer, _):
            assert (answer.status, (await answer.json())["part"]) == (400, "Last-Event-ID")


async def test_open_streams_are_waits_say_something_now_and_then_and_end_with_the_server(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(event_stream, "KEEPALIVE_S", 0.05)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    async with running(tmp_path) as here:
        caller, gate = here.caller, here.caller.server.gate
        for path in ("/api/v1/events", f"{here.path}/events?after=4"):
            async with AsyncExitStack() as stack:
                for _ in range(gate._limits.waits_per_caller):
                    await stack.enter_async_context(followed(caller, path))
                async with followed(caller, path) as (answer, _):
                    assert answer.status == 429
                    assert (await answer.json())["code"] == "too_many_waits"
            await until(lambda: not gate._waits)
        async with followed(caller, path) as (answer, messages):
            assert answer.status == 200
            assert [(await anext(messages)).event for _ in range(3)] == [""] * 3
            caller.server.wakeups.close()
            assert {one.event async for one in messages} <= {""}
