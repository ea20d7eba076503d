"""The list of an agent's payloads, and the stream of their changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import aiohttp
import pytest

from client_agent.api import routes
from shared.wire import PayloadList
from tests.kit.agent import SERVER
from tests.kit.agent_http import calling


@pytest.fixture
async def agent(tmp_path):
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


async def test_the_list_holds_what_is_not_acknowledged_of_one_server(agent):
    done = await agent.completed("1.1")
    gone = await agent.completed("2.1")
    await agent.call("DELETE", f"/payloads/{gone}")
    _, other = await agent.submit("1.1", server="other")
    _, body = await agent.call("GET", f"/payloads?server={SERVER}")
    assert [one.id for one in PayloadList.model_validate(body).payloads] == [done]
    _, body = await agent.call("GET", "/payloads")
    assert [one["id"] for one in body["payloads"]] == [done, other["id"]]


async def test_a_list_is_read_in_pages_that_are_bounded_in_bytes(agent, monkeypatch):
    ids = [await agent.completed(key) for key in ("1.1", "2.1", "3.1")]
    _, whole = await agent.call("GET", "/payloads")
    assert ([one["id"] for one in whole["payloads"]], whole["next"]) == (ids, None)
    monkeypatch.setattr(routes, "_PAGE_BYTES", 10)
    found: list[Any] = []
    after: int | None = 0
    while after is not None:
        _, body = await agent.call("GET", f"/payloads?server={SERVER}&after={after}")
        assert len(body["payloads"]) == 1
        found += body["payloads"]
        after = body["next"]
    assert found == whole["payloads"]


class Stream:
    """An open event stream, read line by line."""

    def __init__(self, response):
        self.response = response

    async def next(self):
        line = await self.response.content.readline()
        return json.loads(line) if line else None

    async def ends(self, count=1):
        """The next payloads that are reported as ended, each with the result behind its line."""
        found: list[tuple[dict[str, Any], bytes]] = []
        while len(found) < count:
            event = await self.next()
            result = await self.response.content.readexactly(event["result_bytes"])
            if event["payload"] is not None and event["payload"]["ended_at"]:
                found.append((event, result))
        return found


async def runs(agent, key):
    """Wait until the payload of this key runs."""
    async with agent.http.get("/events") as response:
        stream = Stream(response)
        while True:
            payload = (await stream.next())["payload"]
            if payload is not None and (payload["key"], payload["status"]) == (key, "Running"):
                return


def announced(payload):
    return payload["result"]["size"], payload["result"]["sha256"]


def measured(result):
    return len(result), hashlib.sha256(result).hexdigest()


async def test_the_stream_has_each_change_as_it_happens(agent):
    async with agent.http.get(f"/events?after=0&server={SERVER}") as response:
        stream = Stream(response)
        assert (await stream.next())["payload"] is None
        await agent.submit()
        seen = [await stream.next()]
        process = await agent.sandbox.process("1.1")
        while seen[-1]["payload"]["status"] != "Running":
            seen.append(await stream.next())
        process.finish()
        seen.append(await stream.next())
        assert [event["payload"]["status"] for event in seen] == ["Running", "Completed"]
        numbers = [event["seq"] for event in seen]
        assert numbers == sorted(set(numbers))


async def test_a_stream_that_begins_later_has_only_the_latest_of_each(agent):
    ids = [await agent.completed(f"{job}.1") for job in (1, 2)]
    async with agent.http.get("/events?after=0") as response:
        stream = Stream(response)
        first, second, caught_up = [await stream.next() for _ in range(3)]
    assert [first["payload"]["id"], second["payload"]["id"]] == ids
    assert {first["payload"]["status"], second["payload"]["status"]} == {"Completed"}
    assert (caught_up["seq"], caught_up["payload"]) == (second["seq"], None)
    async with agent.http.get(f"/events?after={first['seq']}") as response:
        assert (await Stream(response).next())["payload"]["id"] == ids[1]


async def test_a_heartbeat_says_each_second_how_many_run(agent):
    async with agent.http.get("/events") as response:
        stream = Stream(response)
        first = await stream.next()
        assert (first["status"]["running"], first["status"]["load"]) == (0, None)
        for _ in range(2):
            await agent.clock.until_asleep(1)
            await agent.clock.advance(1)
            again = await stream.next()
            load = again["status"].pop("load")
            assert load is None or 0 <= load <= 100
            assert again == first | {"status": {"slots": 2, "running": 0, "draining": False}}


async def test_numbers_go_on_after_a_restart_and_nothing_is_sent_twice(tmp_path):
    async with calling(tmp_path) as agent:
        await agent.completed("1.1")
        _, listed = await agent.call("GET", "/payloads")
    after = f"/events?after={listed['seq']}"
    async with calling(tmp_path) as agent, agent.http.get(after) as response:
        stream = Stream(response)
        first = await stream.next()
        assert (first["seq"], first["payload"]) == (listed["seq"], None)
        await agent.submit("2.1")
        event = await stream.next()
        assert event["payload"]["key"] == "2.1"
        assert event["seq"] > listed["seq"]
        (await agent.sandbox.process("2.1")).finish()


async def test_an_agent_that_lost_its_data_starts_over(agent):
    payload_id = await agent.completed()
    async with agent.http.get("/events?after=999999") as response:
        event = await Stream(response).next()
    assert event["payload"]["id"] == payload_id


async def test_acknowledgements_are_not_sent(agent):
    payload_id = await agent.completed()
    async with agent.http.get("/events?after=0") as response:
        stream = Stream(response)
        assert (await stream.next())["payload"]["id"] == payload_id
        await stream.next()
        await agent.call("DELETE", f"/payloads/{payload_id}")
        await agent.submit("2.1")
        assert (await stream.next())["payload"]["key"] == "2.1"


async def test_an_invalid_number_is_refused(agent):
    for query in ("after=x", "after=-1", "after=nan", "after=inf"):
        status, body = await agent.call("GET", f"/events?{query}")
        assert (status, body["code"]) == (400, "invalid_query")


async def test_stopping_sends_the_last_ends_on_open_streams(tmp_path):
    events: list[dict[str, Any]] = []
    caught_up = asyncio.Event()

    async def read(url):
        async with aiohttp.ClientSession() as http, http.get(f"{url}/events") as response:
            async for line in response.content:
                events.append(json.loads(line))
                caught_up.set()

    async with calling(tmp_path, slots=1) as agent:
        await agent.submit("1.1")
        await agent.sandbox.process("1.1")
        await agent.submit("2.1")
        reading = asyncio.ensure_future(read(agent.url))
        await caught_up.wait()
    await reading
    last = [event["payload"] for event in events if event["payload"]][-1]
    assert (last["key"], last["status"], last["reason"]) == ("1.1", "Failed", "shutdown")
    assert last["interrupted"]
    async with calling(tmp_path, slots=1) as agent:
        (await agent.sandbox.process("2.1")).finish()


async def test_small_results_come_with_the_stream_to_who_asks(agent):
    ids = [await agent.completed(f"{job}.1") for job in (1, 2)]
    async with agent.http.get("/events?after=0&results=262144") as response:
        stream = Stream(response)
        for payload_id, (event, result) in zip(ids, await stream.ends(2), strict=True):
            assert event["payload"]["id"] == payload_id
            assert measured(result) == announced(event["payload"])
        later = await agent.completed("3.1")
        [(event, result)] = await stream.ends()
        assert event["payload"]["id"] == later
        assert measured(result) == announced(event["payload"])
    most = event["payload"]["result"]["size"] - 1
    for asked in ("", f"&results={most}"):
        async with agent.http.get(f"/events?after={event['seq'] - 1}{asked}") as response:
            [(again, nothing)] = await Stream(response).ends()
            assert (again["payload"]["id"], nothing) == (later, b"")


async def test_who_lost_the_stream_gets_again_what_it_has_not_seen_with_its_result(agent):
    for job in (1, 2, 3):
        await agent.completed(f"{job}.1")
    async with agent.http.get("/events?after=0&results=262144") as response:
        [(first, _)] = await Stream(response).ends()
    async with agent.http.get(f"/events?after={first['seq']}&results=262144") as response:
        for event, result in await Stream(response).ends(2):
            assert measured(result) == announced(event["payload"])
            assert event["payload"]["key"] in ("2.1", "3.1")


async def test_a_result_that_is_gone_does_not_come_and_the_stream_goes_on(agent, tmp_path):
    gone, there = [await agent.completed(f"{job}.1") for job in (1, 2)]
    (tmp_path / "agent" / "results" / f"{gone}.zip").unlink()
    async with agent.http.get("/events?after=0&results=262144") as response:
        (one, nothing), (other, result) = await Stream(response).ends(2)
    assert (one["payload"]["id"], nothing) == (gone, b"")
    assert other["payload"]["id"] == there
    assert measured(result) == announced(other["payload"])


async def test_what_ends_soon_is_reported_once_and_what_runs_on_a_little_later(agent):
    async with agent.http.get("/events?quick_ms=100") as response:
        stream = Stream(response)
        start = (await stream.next())["seq"]
        quick = await agent.completed("1.1")
        event = await stream.next()
        assert (event["payload"]["id"], event["payload"]["status"]) == (quick, "Completed")
        await agent.submit("2.1")
        process = await agent.sandbox.process("2.1")
        await runs(agent, "2.1")
        later = await agent.completed("3.1")
        event = await stream.next()
        assert (event["payload"]["id"], event["payload"]["status"]) == (later, "Completed")
        assert start < event["seq"], "what was sent before"
        seen = event["seq"]
        await agent.clock.until_asleep(0.1)
        await agent.clock.advance(0.1)
        event = await stream.next()
        assert (event["payload"]["key"], event["payload"]["status"]) == ("2.1", "Running")
        assert event["seq"] == seen + 1, "until then nothing behind it counted as sent"
        process.finish()
        event = await stream.next()
        assert (event["payload"]["key"], event["payload"]["status"]) == ("2.1", "Completed")
