"""The event stream of an agent, as this server reads it."""

from __future__ import annotations

import asyncio
from unittest import mock

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol

from server.agents import event_lines
from shared.wire import AgentEvent, PayloadDoc, PayloadState
from tests.kit.clock import SimClock

PAYLOAD = PayloadDoc(id=7, status=PayloadState.COMPLETED, key="1.1")


def stream(*pieces: bytes) -> aiohttp.StreamReader:
    loop = asyncio.get_running_loop()
    reader = aiohttp.StreamReader(mock.create_autospec(BaseProtocol), 1 << 16, loop=loop)
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    return reader


def line(**event: object) -> bytes:
    return AgentEvent(seq=1, **event).model_dump_json().encode() + b"\n"  # type: ignore[arg-type]


async def heard(*pieces: bytes) -> list[tuple[int | None, bytes | None]]:
    found = event_lines.read(stream(*pieces), SimClock())
    return [
        (one.event.payload.id if one.event.payload else None, one.result) async for one in found
    ]


async def test_results_are_read_from_behind_their_lines() -> None:
    result = b"of\nbytes\n"
    with_result = line(payload=PAYLOAD, result_bytes=len(result)) + result
    found = await heard(line(), with_result, line(payload=PAYLOAD), with_result)
    assert found == [(None, None), (7, result), (7, None), (7, result)]


@pytest.mark.parametrize(
    "broken",
    [
        line(payload=PAYLOAD, result_bytes=event_lines.MAX_RESULT + 1) + b"x",
        line(result_bytes=3) + b"abc",
        line(payload=PAYLOAD, result_bytes=3) + b"ab",
        b'{"seq":1,"result_bytes":-1}\n',
        b"x" * (1 << 21),
    ],
)
async def test_what_was_not_asked_for_ends_the_stream(broken: bytes) -> None:
    with pytest.raises(ValueError, match=r"events|line|result_bytes"):
        await heard(broken)
