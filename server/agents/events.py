"""The event stream of an agent: lines, some with the result of their payload behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from server.agents.ferryman_agent import FerrymanAgent
from shared.clock import Clock
from shared.wire import AgentEvent

MAX_RESULT: Final = 1 << 20
"""Bytes of a result that comes behind its line."""
QUICK_MS: Final = 100
"""An attempt that ends within so long of its start is reported once, as ended."""
SILENT_S: Final = 10.0
"""An agent that sends a heartbeat each second counts as gone when it has sent nothing for so
long."""
_LINES: Final = 100
"""Then others have a turn: lines that are there already are read without one."""
_LINE_BYTES: Final = 1 << 20
"""A payload's live values have limits, and so has its line."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One event."""

    event: AgentEvent
    result: bytes | None
    """Of its payload, as it came: it is still to be checked. None: it has to be fetched."""
    size: int
    """Bytes of its line."""


async def listen(client: FerrymanAgent, after: int, clock: Clock) -> AsyncIterator[Heard]:
    """What it says about payloads of ours; ends, or raises Unreachable, as the connection does."""
    async with client.event_stream(after, MAX_RESULT, QUICK_MS) as answer:
        async for heard in read(answer.content, clock):
            payload = heard.event.payload
            if payload is None or client.is_ours(payload):
                if heard.result is not None:
                    client.count("result", "ok", len(heard.result))
                yield heard


async def read(stream: aiohttp.StreamReader, clock: Clock) -> AsyncIterator[Heard]:
    """The events, until the stream ends.

    Raises:
        ValueError: it is not an agent's stream.
        TimeoutError: it has sent nothing for too long.
        aiohttp.ClientError
    """
    lines, silent_s = 0, None
    while line := await _line(stream, silent_s):
        lines += 1
        if not lines % _LINES:
            await clock.sleep(0.0)
        if not line.strip():
            continue
        event = AgentEvent.model_validate_json(line)
        if event.status is not None:
            silent_s = SILENT_S
        yield Heard(event, await _result(stream, event, silent_s), len(line))


async def _line(stream: aiohttp.StreamReader, silent_s: float | None) -> bytes:
    try:
        async with asyncio.timeout(silent_s):
            return await stream.readline(max_line_length=_LINE_BYTES)
    except LineTooLong:
        raise ValueError("a line without end among its events") from None


async def _result(
    stream: aiohttp.StreamReader, event: AgentEvent, silent_s: float | None
) -> bytes | None:
    if not event.result_bytes:
        return None
    if event.payload is None or event.result_bytes > MAX_RESULT:
        raise ValueError("a result among its events that was not asked for")
    try:
        async with asyncio.timeout(silent_s):
            return await stream.readexactly(event.result_bytes)
    except asyncio.IncompleteReadError:
        raise ValueError("its events end within a result") from None
