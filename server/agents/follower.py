"""Keeping in touch with one agent: health, what it holds, then its event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from server.agents.ferryman_agent import FerrymanAgent
from server.agents.link import Link
from server.agents.registry import Registry
from server.ports import AgentError, RefusedByAgent
from server.stages.agents import Agents
from server.stages.get import Get
from shared.clock import Clock, wait_for
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import AgentHealth, PayloadList

log = structlog.get_logger()
_HEALTH_EVERY_S: Final = 10.0
_BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_STEADY_S: Final = 5.0
"""An agent that could be talked to for less has failed once more."""


class Follower:
    """Keeps in touch with one agent.

    Args:
        on_change: called when the agent can be talked to, or accepts work, again.
    """

    def __init__(
        self,
        link: Link,
        registry: Registry,
        get: Get,
        agents: Agents,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._link, self._registry, self._get, self._agents = link, registry, get, agents
        self._clock, self._on_change = clock, on_change
        self._reading = False
        """Whether the end of the event stream would be noticed."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``."""
        link, failures = self._link, 0
        while not stop.is_set():
            if link.excluded:
                log.warning("agent.excluded", agent=link.name, why=link.excluded)
                self._registry.mark_down(link, link.not_reached_yet)  # when it is in use again
                await link.state_changed.wait()
                link.state_changed.clear()
                continue
            was_up, contacts = link.reachable, link.contacts
            since = self._clock.monotonic()
            try:
                if isinstance(link, FerrymanAgent):
                    await self._follow(link)
                else:
                    await self._poll(stop)
                continue
            except AgentError as problem:
                why = str(problem)
                if isinstance(problem, RefusedByAgent):
                    why = f"agent {link.name} cannot be reached: it says {why}"
                if was_up or failures == 0 or link.contacts != contacts:
                    log.warning("agent.down", agent=link.name, error=why)
            except Exception as problem:
                why = f"agent {link.name}: communication failed: {problem}"
                log.exception("agent.follow_failed", agent=link.name)
            self._registry.mark_down(link, why)
            steady = link.contacts != contacts and self._clock.monotonic() - since >= _STEADY_S
            failures = 0 if steady else failures + 1
            await wait_for(stop, _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)], self._clock)

    async def _poll(self, stop: asyncio.Event) -> None:
        """A job-orchestrator client: whether it answers is all there is to know."""
        await self._contacted(await self._link.ask_health())
        await wait_for(stop, _HEALTH_EVERY_S, self._clock)

    async def _follow(self, link: FerrymanAgent) -> None:
        """Compare, then follow the events until the agent is excluded.

        Raises:
            AgentError: they ended.
        """
        health = await link.ask_health()
        await link.end_former()
        listing = await link.payloads()
        await self._contacted(health)  # first, so that what reconciling starts goes on
        watch = asyncio.create_task(self._watch_health())
        read = asyncio.create_task(self._read(link, listing))
        try:
            await asyncio.wait({watch, read}, return_when=asyncio.FIRST_COMPLETED)
            if read.done():
                await read
        finally:
            self._reading = False
            watch.cancel()
            read.cancel()
            await asyncio.gather(watch, read, return_exceptions=True)

    async def _read(self, link: FerrymanAgent, listing: PayloadList) -> None:
        await self._get.reconcile(link, listing)
        self._reading = True
        async for event in link.events(listing.seq):
            if event.payload is not None:
                self._reading = False
                await self._get.receive(link, event.payload)
                self._reading = True
        raise AgentError(f"agent {link.name} ended the event stream")

    async def _watch_health(self) -> None:
        """While its events come: whether it may get new work is another question. Returns when the
        agent is excluded.
        """
        while not self._link.excluded:
            if await wait_for(self._link.state_changed, _HEALTH_EVERY_S, self._clock):
                self._link.state_changed.clear()
                continue
            try:
                await self._contacted(await self._link.ask_health())
            except AgentError as problem:
                self._link.unhealthy = str(problem)
                if not self._reading:
                    self._registry.mark_down(self._link, str(problem))

    async def _contacted(self, health: AgentHealth) -> None:
        try:
            await self._agents.contacted(self._link.name, health)
        except DatabaseUnavailable as problem:  # its results are still fetched
            log.warning("agent.not_recorded", agent=self._link.name, error=str(problem))
        link, had = self._link, (self._link.reachable, self._link.accepts_work)
        self._registry.mark_up(link, health)
        if had != (link.reachable, link.accepts_work):
            log.info("agent.up", agent=link.name, accepts_work=link.accepts_work, why=link.trouble)
            self._on_change()
