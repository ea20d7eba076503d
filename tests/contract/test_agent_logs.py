"""The logs of attempts that run, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from client_agent.api.files import FOLLOW_S, PACE_S, PER_READER_S
from tests.kit.agent_http import calling
from tests.kit.waiting import eventually

_ODD = bytes(range(256))


@pytest.fixture
async def agent(tmp_path):
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


async def started(agent, key="1.1"):
    _, payload = await agent.submit(key)
    return payload["id"], await agent.sandbox.process(key)


async def log(agent, payload_id, query="", stream="stdout"):
    async with agent.http.get(f"/payloads/{payload_id}/logs/{stream}?{query}") as response:
        assert response.status == 200, await response.text()
        assert response.headers["X-Accel-Buffering"] == "no"
        return await response.read()


async def test_what_is_written_so_far_comes_byte_by_byte_from_any_offset(agent):
    payload_id, process = await started(agent)
    process.log(_ODD, b"error")
    assert await log(agent, payload_id) == _ODD
    assert await log(agent, payload_id, "offset=200&key=1.1") == _ODD[200:]
    assert await log(agent, payload_id, f"offset={2**63 - 1}") == b""
    assert await log(agent, payload_id, stream="stderr") == b"error"
    process.finish()


async def test_a_followed_log_goes_on_until_its_end(agent):
    payload_id, process = await started(agent)
    process.log(b"one\n")
    async with agent.http.get(f"/payloads/{payload_id}/logs/stdout?follow=1") as response:
        assert await response.content.readany() == b"one\n"
        for data in (b"two\n", _ODD):
            await agent.clock.until_asleep(FOLLOW_S)
            process.log(data)
            await agent.clock.until_asleep(PACE_S)
            await agent.clock.advance(PACE_S)
            assert await response.content.readany() == data
        await agent.clock.until_asleep(FOLLOW_S)
        process.log(b"last")
        process.finish()
        assert await response.read() == b"last"


async def test_many_readers_get_more_at_a_time_and_less_often(agent):
    payload_id, process = await started(agent)
    many = 60
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(many):
            follow = agent.http.get(f"/payloads/{payload_id}/logs/stdout?follow=1")
            await stack.enter_async_context(follow)
        process.log(b"one\n")
        await agent.clock.until_asleep(many * PER_READER_S)
    process.finish()


async def test_who_follows_a_quiet_log_hears_of_the_end_at_once(agent):
    payload_id, process = await started(agent)
    async with agent.http.get(f"/payloads/{payload_id}/logs/stderr?follow=1") as response:
        await agent.clock.until_asleep(FOLLOW_S)
        process.finish()
        async with asyncio.timeout(20):
            assert await response.read() == b""


async def test_other_output_does_not_keep_a_quiet_log_open(agent):
    payload_id, process = await started(agent)
    async with agent.http.get(f"/payloads/{payload_id}/logs/stdout?follow=1") as response:
        await agent.clock.until_asleep(FOLLOW_S)
        await agent.clock.advance(FOLLOW_S - 1)
        process.log(stderr=b"x")
        await agent.clock.advance(1)
        assert await response.read() == b""
    process.finish()


async def test_followers_of_one_that_waits_wait_for_its_start(agent):
    blocking = [await started(agent, f"{n}.1") for n in (1, 2)]
    waiting = [(await agent.submit(f"{n}.1"))[1]["id"] for n in range(3, 8)]
    for payload_id in waiting:
        assert await log(agent, payload_id) == b""
    heard = asyncio.Event()

    async def follow():
        url = f"/payloads/{waiting[-1]}/logs/stdout?follow=1"
        async with agent.http.get(url) as response:
            found = await response.content.readany()
            heard.set()
            return found + await response.read()

    followed = asyncio.create_task(follow())
    await agent.clock.until_asleep(FOLLOW_S)
    for _, process in blocking:
        process.finish()
    others = asyncio.create_task(agent.sandbox.finish(*(f"{n}.1" for n in range(3, 7))))
    process = await agent.sandbox.process("7.1")
    process.log(b"hello from 7")
    # Its log may have been open already: then it hears of this, and waits for more for a moment.
    await eventually(lambda: agent.clock.advance(PACE_S), lambda _: heard.is_set())
    process.finish()
    await others
    assert await followed == b"hello from 7"


async def test_logs_of_what_is_unknown_or_has_ended_are_not_here(agent):
    payload_id = await agent.completed()
    # They are removed in a thread after the end.
    await eventually(
        lambda: agent.call("GET", f"/payloads/{payload_id}/logs/stdout"), lambda it: it[0] != 200
    )
    for path, code in (
        (f"{payload_id}/logs/stdout", "log_gone"),
        (f"{payload_id}/logs/stdout?follow=1", "log_gone"),
        ("99/logs/stdout", "payload_not_found"),
        (f"{payload_id}/logs/stdout?key=1.2", "payload_not_found"),
        (f"{payload_id}/logs/other", "no_such_route"),
        (f"{payload_id}/logs/..%2f1.stdout", "no_such_route"),
    ):
        status, body = await agent.call("GET", f"/payloads/{path}")
        assert (status, body["code"]) == (404, code), path


async def test_an_offset_is_a_number(agent):
    payload_id, process = await started(agent)
    for offset in ("-1", "x", "1e3", "9" * 30):
        status, body = await agent.call(
            "GET", f"/payloads/{payload_id}/logs/stdout?offset={offset}"
        )
        assert (status, body["code"]) == (400, "invalid_query")
    process.finish()


async def test_logs_need_a_token_where_the_agent_has_one(tmp_path):
    async with calling(tmp_path, tokens=["a" * 40]) as agent:
        payload_id, process = await started(agent)
        process.log(b"secret")
        assert await log(agent, payload_id) == b"secret"
        path = f"/payloads/{payload_id}/logs/stdout"
        async with agent.http.get(path, headers={"Authorization": "Bearer no"}) as response:
            assert response.status == 401
        process.finish()


async def test_a_reader_that_is_stuck_costs_only_itself(agent):
    payload_id, process = await started(agent)
    path = f"/payloads/{payload_id}/logs/stdout?follow=1"
    async with agent.http.get(path) as stuck:  # its answer is never read
        process.log(b"x" * (8 << 20))
        assert len(await log(agent, payload_id)) == 8 << 20
        process.finish()
        assert (await agent.ended(payload_id))["status"] == "Completed"
        stuck.close()
