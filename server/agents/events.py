"""Keeping in touch with one agent: health, what it holds, then its event stream, whose lines have
small results behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
import structlog
from aiohttp.http_exceptions import LineTooLong

from server.agents.ferryman_agent import FerrymanAgent
from server.agents.http import AgentClient
from server.agents.registry import Registry
from server.ports import AgentError, RefusedByAgent
from server.stages.agents import Agents
from server.stages.get import Get
from shared.clock import Clock, wait_for
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import AgentEvent, AgentHealth, AgentStatus, PayloadList

log = structlog.get_logger()
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
_HEALTH_EVERY_S: Final = 10.0
_POLL_EVERY_S: Final = 2.0
"""A job-orchestrator client has no heartbeats."""
_BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_STEADY_S: Final = 5.0
"""An agent that could be talked to for less has failed once more."""


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
    async with client.event_stream(after, results=MAX_RESULT, quick_ms=QUICK_MS) as stream:
        async for heard in read(stream, clock):
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


class Follower:
    """Keeps in touch with one agent.

    Args:
        on_change: called when the agent can be talked to, or accepts work, again.
    """

    def __init__(
        self,
        client: AgentClient,
        registry: Registry,
        get: Get,
        agents: Agents,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._client, self._registry, self._get, self._agents = client, registry, get, agents
        self._clock, self._on_change = clock, on_change
        self._reading = False
        """Whether the end of the event stream would be noticed."""
        self._ask_now = False
        """Whether it has changed in a way that only its health document says."""

    async def run(self) -> None:
        """Until it is cancelled."""
        client, failures = self._client, 0
        while True:
            if client.excluded:
                log.warning("agent.excluded", agent=client.name, why=client.excluded)
                self._registry.mark_down(client, client.not_reached_yet)  # when it is in use again
                await client.state_changed.wait()
                client.state_changed.clear()
                continue
            was_up, contacts = client.reachable, client.contacts
            since = self._clock.monotonic()
            try:
                if isinstance(client, FerrymanAgent):
                    await self._follow(client)
                else:
                    await self._poll()
                continue
            except AgentError as problem:
                why = str(problem)
                if isinstance(problem, RefusedByAgent):
                    why = f"agent {client.name} cannot be reached: it says {why}"
                if was_up or failures == 0 or client.contacts != contacts:
                    log.warning("agent.down", agent=client.name, error=why)
            except Exception as problem:
                why = f"agent {client.name}: communication failed: {problem}"
                log.exception("agent.follow_failed", agent=client.name)
            self._registry.mark_down(client, why)
            steady = client.contacts != contacts and self._clock.monotonic() - since >= _STEADY_S
            failures = 0 if steady else failures + 1
            await self._clock.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])

    async def _poll(self) -> None:
        """A job-orchestrator client: whether it answers is all there is to know."""
        await self._contacted(await self._client.ask_health())
        await self._clock.sleep(_POLL_EVERY_S)

    async def _follow(self, client: FerrymanAgent) -> None:
        """Compare, then follow the events until the agent is excluded.

        Raises:
            AgentError: they ended.
        """
        health = await client.ask_health()
        await client.end_former()
        first = await client.payloads()
        await self._contacted(health)  # first, so that what reconciling starts goes on
        watch = asyncio.create_task(self._watch_health())
        read = asyncio.create_task(self._read(client, first))
        try:
            await asyncio.wait({watch, read}, return_when=asyncio.FIRST_COMPLETED)
            if read.done():
                await read
        finally:
            self._reading = False
            watch.cancel()
            read.cancel()
            await asyncio.gather(watch, read, return_exceptions=True)

    async def _read(self, client: FerrymanAgent, first: PayloadList) -> None:
        await self._get.reconcile(client, client.pages(first))
        self._reading = True
        async for heard in listen(client, first.seq, self._clock):
            event, client.heard_at = heard.event, self._clock.now()
            if event.status is not None:
                self._status(event.status)
            if event.payload is not None:
                self._reading = False
                self._registry.mark_not_listening(client)
                await self._get.receive(client, event.payload, heard.result, heard.size)
                self._reading = True
        raise AgentError(f"agent {client.name} ended the event stream")

    def _status(self, status: AgentStatus) -> None:
        client = self._client
        if self._registry.mark_status(client, status):
            log.info("agent.more_slots", agent=client.name, slots=status.slots)
            self._on_change()
        if client.health is not None and client.health.draining != status.draining:
            self._ask_now = True
            client.state_changed.set()

    async def _watch_health(self) -> None:
        """While its events come: whether it may get new work is another question. Returns when the
        agent is excluded.
        """
        while not self._client.excluded:
            if await wait_for(self._client.state_changed, _HEALTH_EVERY_S, self._clock):
                self._client.state_changed.clear()
                if not self._ask_now:
                    continue
            self._ask_now = False
            try:
                await self._contacted(await self._client.ask_health())
            except AgentError as problem:
                self._client.unhealthy = str(problem)
                if not self._reading:
                    self._registry.mark_down(self._client, str(problem))

    async def _contacted(self, health: AgentHealth) -> None:
        try:
            await self._agents.contacted(self._client.name, health)
        except DatabaseUnavailable as problem:  # its results are still fetched
            log.warning("agent.not_recorded", agent=self._client.name, error=str(problem))
        client, had = self._client, (self._client.reachable, self._client.accepts_work)
        self._registry.mark_up(client, health)
        if had != (client.reachable, client.accepts_work):
            log.info(
                "agent.up", agent=client.name, accepts_work=client.accepts_work, why=client.trouble
            )
            self._on_change()
