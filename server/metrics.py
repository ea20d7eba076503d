"""What ``GET /metrics`` of the server says, collected when somebody asks for it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from server.domain.agents import AgentRecord
from server.domain.service import Service
from server.domain.troubles import SERVER_TROUBLES, Trouble
from server.health import Vitals
from server.http.context import Context
from server.ports import Agent, Fleet
from server.store import statistics
from shared.clock import SECOND, Micros
from shared.metrics import Labels, ProgramMetrics, gauge, known
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import AgentState, JobState

_FRESH_S: Final = 2.0
"""For so long what was read from the store is said again."""
_REST: Final = 20
"""For so many times as long as it took to read, if that is longer: a twentieth of one processor's
time, whoever asks how often."""
_AGENT_STATES: Final = ("accepting", "unfit", "unreachable", "draining", "retired", "lost")
_JOB_STATES: Final = (
    JobState.QUEUED,
    JobState.PROCESSING,
    JobState.SUBMITTED,
    JobState.RUNNING,
    JobState.UNKNOWN,
)


class ServerMetrics(ProgramMetrics):
    """The metrics of a server; those of the store are left out while it cannot be read.

    Args:
        of: what is asked how it is.
        requests: count themselves, as do parts of the server.
    """

    def __init__(self, of: Context, requests: Iterable[Collector]) -> None:
        self._of, self._database = of, of.database
        counting = [of.lag.seconds, of.supervisor.failures, *requests]
        counting += [of.database.commit_s, *of.measures.collectors]
        super().__init__("server", of.version, counting)
        self._stored: list[Metric] = []
        self._agents: list[AgentRecord] | None = None
        self._stored_until, self._reading = -math.inf, asyncio.Lock()

    async def find(self) -> list[Metric]:
        of = self._of
        services = {name: one for name, one in of.services.items() if not one.retired}
        of.measures.jobs.begin(services)
        async with self._reading:  # who asks at the same time gets the same
            if of.clock.monotonic() >= self._stored_until:
                await self._read(services)
        found = [*self._stored, _listeners(of.measures.listeners)]
        found += _of_server(await of.health.troubles(), await of.health.vitals())
        found += _of_agents(of.fleet, self._agents)
        found += _of_services(services, of.fleet)
        found.append(
            gauge(
                "ferryman_results_waiting",
                "Results that cannot be stored now.",
                ("reason",),
                {("disk",): len(of.get.results.waiting)},
            )
        )
        readable: dict[Labels, float] = {(): float(bool(self._stored))}
        found.append(gauge("ferryman_store_readable", "1: the store could be read.", (), readable))
        return found

    async def _read(self, services: Mapping[str, Service]) -> None:
        of, began = self._of, self._of.clock.monotonic()
        try:
            queued = await self._database.read_list(statistics.queued)
            under_way = await self._database.read_list(statistics.under_way)
            oldest = await of.webhooks.oldest()
            self._agents = await of.agents.all()
        except DatabaseUnavailable:
            self._stored, self._agents = [], None
        else:
            now = of.clock.now()
            since: dict[Labels, float] = {(): 0.0 if oldest is None else (now - oldest) / SECOND}
            text = "Since the oldest webhook that is to be sent was announced."
            self._stored = [
                *of_jobs(queued, under_way, now, services),
                gauge("ferryman_webhooks_oldest_seconds", text, (), since),
            ]
        took = of.clock.monotonic() - began
        self._stored_until = of.clock.monotonic() + max(_FRESH_S, _REST * took)


def of_jobs(
    queued: Mapping[str, tuple[int, Micros | None]],
    under_way: Mapping[tuple[str, JobState], int],
    now: Micros,
    services: Mapping[str, Service],
) -> list[Metric]:
    """How many jobs there are in each state.

    A service that is neither in the settings nor was made by an operator is ``other``.
    """
    jobs = Counter[Labels]({(name, state): 0 for name in services for state in _JOB_STATES})
    oldest: dict[Labels, float] = {(name,): 0.0 for name in services}
    for name, (count, since) in queued.items():
        label = known(name, services)
        jobs[label, JobState.QUEUED] += count
        waits = 0.0 if since is None else (now - since) / SECOND
        oldest[label,] = max(oldest.get((label,), 0.0), waits)
    for (name, state), count in under_way.items():
        jobs[known(name, services), state] += count
    waiting = "For how long the job waits that waits longest."
    return [
        gauge("ferryman_jobs", "Jobs that have not ended.", ("service", "state"), jobs),
        gauge("ferryman_oldest_waiting_seconds", waiting, ("service",), oldest),
    ]


def _of_server(troubles: Sequence[Trouble], vitals: Vitals) -> list[Metric]:
    """Its troubles, disk, database and loops."""
    kinds = Counter[Labels]({(kind.value,): 0 for kind in SERVER_TROUBLES})
    kinds.update((one.kind.value,) for one in troubles)
    stuck: dict[Labels, float] = {(one.name,): float(not one.healthy) for one in vitals.loops}
    late = "1: its last sweep that ended well is far longer ago than it should be."
    found: list[Metric] = [
        gauge("ferryman_troubles", "What keeps the server from new work.", ("kind",), kinds),
        gauge("ferryman_loop_stuck", late, ("loop",), stuck),
    ]
    if vitals.database_bytes is not None:
        size: dict[Labels, float] = {(): vitals.database_bytes}
        found.append(gauge("ferryman_database_bytes", "Bytes of the database's file.", (), size))
    if vitals.disk is not None:
        free, of_all = "Free bytes of the disk of the data folder.", "Bytes of that disk."
        least = "Free bytes that uploads must leave: min_free."
        found += [
            gauge("ferryman_disk_free_bytes", free, (), {(): vitals.disk.free}),
            gauge("ferryman_disk_size_bytes", of_all, (), {(): vitals.disk.total}),
            gauge("ferryman_disk_min_free_bytes", least, (), {(): vitals.disk.min_free}),
        ]
    return found


def _of_agents(fleet: Fleet, records: Sequence[AgentRecord] | None) -> list[Metric]:
    """The agents of the settings.

    Args:
        records: None: the store cannot be read.
    """
    agents = fleet.all()
    kept = {one.name: one.state for one in records or () if one.state is not AgentState.ACTIVE}
    states = Counter[Labels]({(state,): 0 for state in _AGENT_STATES})
    states.update((_state(one, kept),) for one in agents)
    agents = [one for one in agents if kept.get(one.name) is not AgentState.RETIRED]
    up: dict[Labels, float] = {(one.name,): float(one.accepts_work) for one in agents}
    reachable: dict[Labels, float] = {(one.name,): float(one.reachable) for one in agents}
    text = "1: the agent can be talked to."
    return [
        gauge("ferryman_agents", "Agents of the settings, by state.", ("state",), states),
        gauge("ferryman_agent_up", "1: the agent takes new jobs.", ("agent",), up),
        gauge("ferryman_agent_reachable", text, ("agent",), reachable),
    ]


def _state(agent: Agent, kept: Mapping[str, AgentState]) -> str:
    state = kept.get(agent.name)
    if state is not None:
        return state.value
    if agent.accepts_work:
        return "accepting"
    if not agent.reachable:
        return "unreachable"
    health = agent.health
    return "draining" if health is not None and health.draining else "unfit"


def _of_services(services: Mapping[str, Service], fleet: Fleet) -> list[Metric]:
    """What is offered."""
    paused: dict[Labels, float] = {(name,): float(one.paused) for name, one in services.items()}
    offered: dict[Labels, float] = {(name,): float(fleet.offered(name)) for name in services}
    text, some = "1: an operator has paused the service.", "1: an agent offers the service, though "
    return [
        gauge("ferryman_service_paused", text, ("service",), paused),
        gauge("ferryman_service_offered", f"{some}perhaps not now.", ("service",), offered),
    ]


def _listeners(listeners: Mapping[str, int]) -> Metric:
    """Who follows events."""
    return gauge(
        "ferryman_event_listeners",
        "Streams of server-sent events that are open.",
        ("route",),
        {(route,): count for route, count in listeners.items()},
    )
