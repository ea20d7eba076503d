"""Lists of payloads, as agents of all versions and as hostile ones send them."""

from __future__ import annotations

import asyncio
import json

import pytest

from server.agents import listing
from shared.clock import yield_to_loop
from shared.wire import PayloadDoc, PayloadList, PayloadState

DOC = PayloadDoc(id=1, status=PayloadState.COMPLETED, key="1.1", stderr_tail='é "}],{')


@pytest.mark.parametrize("count", [0, 1, 3, 1_000])
@pytest.mark.parametrize("indent", [None, 1])
async def test_it_is_read_as_the_model_reads_it(count, indent):
    docs = [DOC.model_copy(update={"id": number}) for number in range(count)]
    whole = PayloadList(seq=7, payloads=docs)
    for body in (whole.model_dump_json(indent=indent), json.dumps(whole.model_dump())):
        assert await listing.parse(body.encode()) == whole


async def test_everybody_else_has_a_turn_while_a_long_one_is_read():
    body = PayloadList(seq=1, payloads=[DOC] * 1_000).model_dump_json().encode()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await yield_to_loop()

    task = asyncio.create_task(others())
    await listing.parse(body)
    task.cancel()
    assert turns >= 10


async def test_more_than_an_agent_can_hold_is_refused_before_it_is_kept(monkeypatch):
    monkeypatch.setattr(listing, "MOST", 10)
    body = PayloadList(seq=1, payloads=[DOC] * 11).model_dump_json().encode()
    with pytest.raises(ValueError, match="more than 10 payloads"):
        await listing.parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"<html>",
        b"\xff",
        b'{"seq":1}',
        b'{"seq":1,"payloads":[',
        b'{"seq":1,"payloads":[]',
        b'{"seq":1,"payloads":[]}x',
        b'{"seq":1,"payloads":[,]}',
        b'{"seq":1,"payloads":[{"id":1,"status":"Killed"}{"id":1,"status":"Killed"}]}',
        b'{"seq":1,"payloads":[1]}',
        b'{"seq":1,"payloads":[{"id":1}]}',
        b'{"seq":1,"payloads":[{"id":1,"status":"Odd"}]}',
        b'{"seq":1,"payloads":[' + b"[" * 100_000,
        b'{"seq":1,"payloads":[{"id":1,"status":"Killed","message":"%s"}]}' % (b"x" * (1 << 20)),
    ],
)
async def test_something_else_is_not_an_agents_list(body):
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says, it is not taken
        await listing.parse(body)
