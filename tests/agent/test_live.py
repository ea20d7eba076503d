"""The stream of changes, and what attempts say while they run, fall silent or ask to run later."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from client_agent.run import outcomes
from client_agent.storage import folders
from tests.kit.agent_http import calling, digest
from tests.kit.each import each

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def seq(agent: Any) -> int:
    """Of the latest change: whoever asks behind it sees what comes from now on."""
    return int((await agent.call("GET", "/payloads"))[1]["seq"])


# -- the stream


async def test_the_stream_has_each_change_as_it_happens_and_later_only_the_latest(agent) -> None:
    async with agent.stream(after=await seq(agent), server=agent.server) as stream:
        assert (await stream.next())["payload"] is None
        _, process = await agent.started()
        first = await stream.next()
        process.finish()
        last = await stream.next()
        assert [one["payload"]["status"] for one in (first, last)] == ["Running", "Completed"]
        gone = await agent.completed("2.1")
        await stream.until("2.1", "Completed")
        await agent.forget(gone)
        ids = [last["payload"]["id"], await agent.completed("3.1")]
        assert (await stream.next())["payload"]["key"] == "3.1", "acknowledgements are not sent"
    found: list[Any] = []
    for after in (0, 10**9):  # the latter of an agent that lost its data since
        async with agent.stream(after=after) as stream:
            *found, caught_up = [await stream.next() for _ in range(3)]
        assert [(one["payload"]["id"], one["payload"]["status"]) for one in found] == [
            (one, "Completed") for one in ids
        ]
        assert (caught_up["seq"], caught_up["payload"]) == (found[-1]["seq"], None)
    async with agent.stream(after=found[0]["seq"]) as stream:
        assert (await stream.next())["payload"]["id"] == ids[1]
    for number in ("x", "-1", "nan", "inf"):
        status, body = await agent.call("GET", f"/events?after={number}")
        assert (status, body["code"]) == (400, "invalid_query")


async def test_a_heartbeat_says_each_second_how_many_run(agent) -> None:
    async with agent.stream(after=await seq(agent)) as stream:
        first = await stream.next()
        assert (first["status"]["running"], first["status"]["load"]) == (0, None)
        for _ in range(2):
            await agent.clock.until_asleep(1)
            await agent.clock.advance(1)
            again = await stream.next()
            load = again["status"].pop("load")
            assert load is None or 0 <= load <= 100
            assert again == first | {"status": {"slots": 2, "running": 0, "draining": False}}


async def test_stopping_sends_the_last_ends_on_open_streams(tmp_path) -> None:
    events: list[dict[str, Any]] = []
    caught_up = asyncio.Event()

    async def read(url: str) -> None:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/events") as response:
            async for line in response.content:
                events.append(json.loads(line))
                caught_up.set()

    async with calling(tmp_path, slots=1) as agent:
        await agent.started("1.1")
        await agent.submit("2.1")
        reading = asyncio.ensure_future(read(agent.url))
        await caught_up.wait()
    await reading
    last = [event["payload"] for event in events if event["payload"]][-1]
    assert (last["key"], last["status"], last["reason"]) == ("1.1", "Failed", "shutdown")
    assert last["interrupted"]


@each("row_bytes", [0, folders.ROW_BYTES])
async def test_small_results_come_with_the_stream_to_who_asks(agent, monkeypatch, row_bytes):
    await agent.fresh_server()
    monkeypatch.setattr(folders, "ROW_BYTES", row_bytes)
    keys = ["1.1", "2.1", "3.1"]
    gone, *ids = [await agent.completed(key) for key in keys]
    if row_bytes:
        with agent.database as database:
            database.execute("DELETE FROM results WHERE payload_id = ?", (gone,))
    else:
        (agent.data / "results" / f"{gone}.zip").unlink()
    async with agent.stream(after=0, results=1 << 18) as stream:
        lost, *there = await stream.ends(3)
        assert (lost["payload"]["id"], lost["result"]) == (gone, b"")
        ids.append(await agent.completed("4.1"))
        there += await stream.ends(1)
    assert [one["payload"]["id"] for one in there] == ids
    for one in there:
        assert digest(one["result"]).items() <= one["payload"]["result"].items()
    async with agent.stream(after=there[0]["seq"], results=1 << 18) as stream:
        again = await stream.ends(2)  # to who lost the stream
        assert [one["result"] for one in again] == [one["result"] for one in there[1:]]
    size = there[0]["payload"]["result"]["size"]
    for query in ({}, {"results": size - 1}):
        async with agent.stream(after=there[0]["seq"] - 1, **query) as stream:
            (event, *_) = await stream.ends(1)
            assert (event["payload"]["id"], event["result"]) == (ids[0], b"")


async def test_what_ends_soon_is_reported_once_and_what_runs_on_a_little_later(agent) -> None:
    async with agent.stream(after=await seq(agent), quick_ms=100) as stream:
        start = (await stream.next())["seq"]
        quick = await agent.completed("1.1")
        event = await stream.next()
        assert (event["payload"]["id"], event["payload"]["status"]) == (quick, "Completed")
        _, process = await agent.started("2.1")
        async with agent.stream() as other:
            await other.until("2.1", "Running")
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
        assert (await stream.next())["payload"]["status"] == "Completed"


# -- live values


@each(
    "line, most, last",
    [
        (b"::progress value=%d::\n", 7, 19),  # twice a second
        (b". %d\n", 2, None),  # without commands: once in five seconds
    ],
)
async def test_values_are_reported_seldom_and_the_latest_of_them(agent, line, most, last) -> None:
    await agent.fresh_server()
    _, process = await agent.started(timeout_s=1e6)
    async with agent.stream(after=await seq(agent)) as stream:
        await stream.next()
        for number in range(20):
            process.log(line % number)
            await agent.clock.advance(0.125 if last else 0.4)
        await agent.clock.advance(10)
        process.finish()
        values = []
        while True:
            payload = (await stream.next())["payload"]
            if payload is not None and payload["ended_at"]:
                break
            if payload is not None and payload["live"]:
                progress = payload["live"]["progress"]
                values.append(progress and progress["current"])
        assert 1 <= len(values) <= most, values
        assert values[-1] == last
        assert last is None or values == sorted(set(values))
        await agent.clock.advance(1)
        assert (await stream.next())["payload"] is None, "nothing says that it runs"


async def test_a_new_reader_gets_the_values_of_all_that_run(agent) -> None:
    for key in ("1.1", "2.1"):
        (await agent.started(key))[1].log(b"::progress value=1::\n")
    await agent.clock.advance(1)
    async with agent.stream(after=await seq(agent)) as stream:
        assert (await stream.next())["payload"] is None
        found = [(await stream.next())["payload"] for _ in range(2)]
    assert {one["key"] for one in found} == {"1.1", "2.1"}
    assert all(one["live"]["progress"]["current"] == 1 for one in found)
    async with agent.stream(after=await seq(agent), server="another") as stream:
        assert (await stream.next())["payload"] is None
        await agent.clock.until_asleep(1)
        await agent.clock.advance(1)
        assert (await stream.next())["payload"] is None, "nothing runs for that one"


async def test_a_silent_attempt_is_stopped(agent) -> None:
    payload_id, process = await agent.started(heartbeat_timeout_s=60.0, timeout_s=1e6)
    agent.clock.jump(1e6)  # the wall clock is no sign of anything
    for out, err in ((b"x", b""), (b"::heartbeat::\n", b""), (b"", b"x")):
        await agent.clock.advance(59)
        process.log(out, err)
    await agent.clock.advance(59.9)
    assert process.alive
    await agent.clock.advance(0.2)
    doc = await agent.ended(payload_id)
    assert (doc["status"], doc["reason"]) == ("Failed", "heartbeat_timeout")
    assert doc["message"] == (
        "stopped because it wrote nothing to stdout or stderr for 1m; its heartbeat timeout is 1m"
    )
    assert (doc["interrupted"], process.asked_to_stop) == (False, True)


async def test_what_is_no_silence(agent) -> None:
    silence = {"heartbeat_timeout_s": 60.0, "timeout_s": 1e6}
    processes = [(await agent.started(f"{n}.1", timeout_s=1e7))[1] for n in (1, 2)]
    _, payload = await agent.submit("3.1", **silence)
    await agent.clock.advance(200)  # these have no such limit
    assert all(process.alive for process in processes)
    for process in processes:
        process.finish()
    process = await agent.sandbox.process("3.1")
    await agent.clock.advance(59)
    assert process.alive, "the time before its start"
    process.output_paused = True
    await agent.clock.advance(200)
    assert process.alive, "what the agent does not read"
    process.output_paused = False
    await agent.clock.advance(10)
    assert process.alive
    await agent.clock.advance(60)
    assert (await agent.ended(payload["id"]))["reason"] == "heartbeat_timeout"


@each(
    "said, code, later",
    [
        (b"", outcomes.LATER, {"after_s": None, "message": ""}),
        (b"::retry-later after=60s::GPU busy\n", 75, {"after_s": 60, "message": "GPU busy"}),
        (b"::retry-later after=60s::GPU busy", 0, {"after_s": 60, "message": "GPU busy"}),
        (b"::retry-later::\n", 3, {"after_s": None, "message": ""}),
        (b"", 74, None),
    ],
)
async def test_who_asks_is_tried_later_and_keeps_its_result(agent, said, code, later) -> None:
    await agent.fresh_server()
    payload_id, process = await agent.started()
    process.write("part.txt", b"1")
    process.log(said)
    process.finish(code)
    doc = await agent.ended(payload_id)
    assert (doc["status"], doc["reason"], doc["interrupted"]) == ("Failed", "exit_code", False)
    assert (doc["exit_code"], doc["retry_later"]) == (code, later)
    if later is not None:
        assert doc["message"].startswith("run.sh asked to be tried again later")
        assert doc["message"].endswith(later["message"])
    assert (await agent.zip(f"/retrieve_partial/{payload_id}"))["part.txt"] == b"1"


async def test_a_limit_or_a_cancel_is_not_tried_later(agent) -> None:
    for key, reason in (("1.1", "timeout"), ("2.1", None)):
        payload_id, process = await agent.started(key)
        process.log(b"::retry-later::\n")
        if reason is not None:
            await agent.clock.advance(61)
        else:
            await agent.call("POST", f"/kill/{payload_id}")
        doc = await agent.ended(payload_id)
        assert (doc["reason"], doc["retry_later"]) == (reason, None)
        assert (doc["status"], doc["interrupted"]) == ("Failed" if reason else "Killed", False)
        said = "stopped after 1m: the wall time limit of the job"
        assert reason is None or doc["message"] == said
