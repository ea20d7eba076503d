"""The agents of the settings, while the server runs: they come, go, and change.

What is changed only in whether and how many jobs an agent gets is changed where it is. With an
agent that has another address, token or certificate all work is ended and begun again: what was in
flight is cut off, and settled by the keys of the attempts. An agent that was taken out is not
contacted any more. A bundle that was being sent to it is queued again if
its last byte was not sent. Its other jobs are Unknown until it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import structlog

from server.agents.agent import Agent, Sessions
from server.agents.ferryman_agent import FerrymanAgent
from server.agents.orchestrator import OrchestratorClient
from server.domain.agents import AgentError, Contact, RefusedByAgent
from server.settings.tables import AgentTable
from server.stages.agents import Agents
from server.stages.deliver import Deliver
from server.stages.get import Get
from server.stages.poll import Poll
from server.stages.stage import AgentTasks, Core
from server.store.identity import Identity
from shared.clock import Clock, wait_for
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import AgentHealth, AgentStatus, PayloadList

log: structlog.stdlib.BoundLogger = structlog.get_logger()
_TRANSFERS_PER_HOST: Final = 64
_IN_PLACE: Final = frozenset({"max_runs", "prefetch", "services"})
"""Keys that are changed without a new connection."""
_HEALTH_EVERY_S: Final = 10.0
_POLL_EVERY_S: Final = 2.0
"""A job-orchestrator client has no heartbeats."""
_BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_STEADY_S: Final = 5.0
"""An agent that could be talked to for less has failed once more."""


class Follower:
    """Keeps in touch with one agent."""

    def __init__(self, client: Agent, core: Core, get: Get, agents: Agents) -> None:
        self._client, self._registry, self._get, self._agents = client, core.registry, get, agents
        self._clock, self._on_change = core.clock, core.wakeups.agent_changed
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
            contacts, since = client.contacts, self._clock.monotonic()
            try:
                if isinstance(client, FerrymanAgent):
                    await self._follow(client)
                else:  # whether it answers is all there is to know
                    await self._contacted(await client.ask_health())
                    await self._clock.sleep(_POLL_EVERY_S)
                continue
            except AgentError as problem:
                why = str(problem)
                if isinstance(problem, RefusedByAgent):
                    why = f"agent {client.name} cannot be reached: it says {why}"
                log.warning("agent.down", agent=client.name, error=why)
            except Exception as problem:
                why = f"agent {client.name}: communication failed: {problem}"
                log.exception("agent.follow_failed", agent=client.name)
            self._registry.mark_down(client, why)
            steady = client.contacts != contacts and self._clock.monotonic() - since >= _STEADY_S
            failures = 0 if steady else failures + 1
            await self._clock.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])

    async def _follow(self, client: FerrymanAgent) -> None:
        """Compare, then follow the events until the agent is excluded. Raises AgentError: they
        ended.
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
        async for heard in client.listen(first.seq):
            event, client.heard_at = heard.event, self._clock.now()
            if event.status is not None:
                self._status(event.status)
            if event.payload is not None:
                self._reading = False
                client.heartbeat_at = None
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


@dataclass(frozen=True, slots=True)
class _Known:
    """An agent of the settings, as it is used."""

    table: AgentTable
    connection: Mapping[str, Any]
    """What its client was made of, secrets included."""
    client: Agent

    @property
    def address(self) -> str:
        return contact(self.client.name, self.table).address


class Fleet:
    """Owns the clients and the followers of the agents, and the connections to them.

    Args:
        deliver: what is sent to an agent ends here with its connection.
        poll, get: likewise what is in flight from one.
    """

    def __init__(
        self, core: Core, identity: Identity, agents: Agents, deliver: Deliver, poll: Poll, get: Get
    ) -> None:
        self._core, self._identity, self._clock = core, identity, core.clock
        self._registry, self._agents, self._get = core.registry, agents, get
        self._on_change = core.wakeups.agent_changed
        self._sending, self._receiving = deliver.stop, (poll.stop, get.stop)
        self._sessions = Sessions(
            _session(0), _session(_TRANSFERS_PER_HOST), core.contents, core.measures
        )
        self._known: dict[str, _Known] = {}
        self._applying = asyncio.Lock()
        self._following, self._is_running = AgentTasks[str]("agent.not_followed"), False

    @property
    def clients(self) -> Mapping[str, Agent]:
        """Agent -> what calls it."""
        return {name: one.client for name, one in self._known.items()}

    async def close(self) -> None:
        """The connections to all agents."""
        await self._sessions.control.close()
        await self._sessions.transfers.close()

    async def apply(self, tables: Mapping[str, AgentTable]) -> None:
        """Use these agents, in this way. If it fails, those before are used as they were.

        Raises:
            ValueError: a file that a table names cannot be read.
            DatabaseUnavailable
        """
        async with self._applying:
            before = self._known
            known = {name: await self._use(name, table) for name, table in tables.items()}
            removed = before.keys() - known.keys()
            both = before.keys() & known.keys()
            replaced = {name for name in both if before[name].client is not known[name].client}
            addresses = {one.address for one in known.values()}
            renamed = {name for name in removed if before[name].address in addresses}
            try:
                await self._end_work(sorted(replaced | renamed))
                contacts = [contact(name, one.table) for name, one in known.items()]
                await self._stop_following(removed)
                records = await self._agents.use(contacts)
                # Nothing is waited for from here on: older records would overwrite what an
                # operator decides meanwhile.
                self._known = known
                self._registry.use([one.client for one in known.values()])
                self._registry.remember(records)
                for one in known.values():
                    one.client.prefetch = one.table.prefetch
                    one.client.max_runs = one.table.max_runs
                    one.client.services = frozenset(one.table.services)
            finally:
                self._follow()
                self._on_change()
            if self._is_running:
                _log(before, known)
            for name in sorted(removed):
                before[name].client.cut_off("it was taken out of the settings")
                for stop in self._receiving:
                    await stop(name)
            if removed:
                await self._agents.run_once()
            self._on_change()

    async def _end_work(self, names: Sequence[str]) -> None:
        """With agents that are connected to in another way from now on."""
        for name in names:
            self._registry.mark_down(self._known[name].client, f"agent {name} is connected again")
        await self._stop_following(names)
        for name in names:
            for stop in (self._sending, *self._receiving):
                await stop(name)

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the agents until ``stop``, or until it is cancelled."""
        self._is_running = True
        self._follow()
        try:
            await stop.wait()
        finally:
            await self._following.stop()

    def _follow(self) -> None:
        """Whoever is not followed yet, once the server runs."""
        for name, one in self._known.items() if self._is_running else ():
            follower = Follower(one.client, self._core, self._get, self._agents)
            self._following.start(name, name, follower.run)

    async def _stop_following(self, names: Collection[str]) -> None:
        await asyncio.gather(*map(self._following.stop, names))

    async def _use(self, name: str, table: AgentTable) -> _Known:
        """The agent as it is known, or else newly made. Reads files, in a thread."""
        connection = await asyncio.to_thread(_connection, table)
        known = self._known.get(name)
        if known is not None and known.connection == connection:
            return _Known(table, connection, known.client)
        made = await asyncio.to_thread(
            client, name, table, self._sessions, self._identity, self._clock
        )
        return _Known(table, connection, made)


def _connection(table: AgentTable) -> dict[str, Any]:
    """What has to be another for a new connection."""
    secrets = {"token": table.secret(), "identity": table.identity()}
    return table.model_dump(exclude=set(_IN_PLACE)) | secrets


def _log(before: Mapping[str, _Known], after: Mapping[str, _Known]) -> None:
    for name in sorted(before.keys() - after.keys()):
        log.info("agent.removed", agent=name)
    for name, one in after.items():
        if name not in before:
            log.info("agent.added", agent=name, address=one.address)
        elif before[name].table != one.table:
            again = before[name].client is not one.client
            log.info("agent.changed", agent=name, connects_again=again)


def contact(name: str, agent: AgentTable) -> Contact:
    """What the settings say of an agent; passwords in its address are not shown."""
    kind = "job-orchestrator" if agent.url is None else "ferryman"
    address = (agent.url or agent.upload_url or "").rstrip("/")
    parts = urlsplit(address)
    return Contact(name, kind, parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())


def client(
    name: str, agent: AgentTable, sessions: Sessions, identity: Identity, clock: Clock
) -> Agent:
    """Talks to the agent."""
    more: dict[str, Any] = {
        "token": agent.secret(),
        "services": frozenset(agent.services),
        "tls": agent.tls(),
        "identity": agent.identity(),
    }
    if agent.url is not None:
        return FerrymanAgent(
            name,
            agent.url.rstrip("/"),
            sessions,
            clock,
            server=identity.server,
            former=identity.former,
            start=identity.start,
            **more,
        )
    addresses = (agent.upload_url or "", agent.download_url or "", agent.terminate_url or "")
    return OrchestratorClient(name, *addresses, sessions, clock, **more)


def _session(per_host: int) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=per_host, keepalive_timeout=60)
    return aiohttp.ClientSession(connector=connector, read_bufsize=1 << 18)
