"""What ``GET /metrics`` of the server says, collected when somebody asks for it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from server.agents.agent import Agent
from server.agents.registry import Registry
from server.domain.agents import AgentRecord
from server.domain.service import Service
from server.domain.states import ENDED
from server.domain.troubles import SERVER_TROUBLES, Trouble
from server.health import Disk
from server.http.context import Context
from server.loops import Loop
from server.store import agents, changes, queue, webhooks
from shared.clock import SECOND, Micros
from shared.metrics import Labels, ProgramMetrics, gauge, known
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import AgentState, JobState

_AGENT_STATES: Final = ("accepting", "unfit", "unreachable", "draining", "retired", "lost")
_JOB_STATES: Final = frozenset(JobState) - ENDED


class ServerMetrics(ProgramMetrics):
    """The metrics of a server; those of the store are left out while it cannot be read."""

    def __init__(self, of: Context, requests: Iterable[Collector]) -> None:
        self._of, self._core = of, of.core
        counting = [of.lag.seconds, of.supervisor.failures, *requests]
        counting += [of.core.database.commit_s, *of.core.measures.collectors]
        super().__init__("server", of.version, counting)

    async def find(self) -> list[Metric]:
        of, core = self._of, self._core
        services = {name: one for name, one in core.services.items() if not one.retired}
        core.measures.jobs.begin(services)
        records, stored = None, list[Metric]()
        with contextlib.suppress(DatabaseUnavailable):
            records = await self._core.database.read(agents.all_agents)
            stored = await self._of_store(services)
        found = stored + _of_loops(await of.health.troubles(), of.supervisor.loops)
        found += _of_disk(await of.health.disk(), (await of.health.database_bytes())[0])
        found += _of_agents(core.registry, records)
        found += _of_services(services, core.registry)
        waiting, text = {"disk": len(of.stages.get.results)}, "Results that cannot be stored now."
        found.append(_each("ferryman_results_waiting", text, "reason", waiting))
        found.append(_one("ferryman_store_readable", "1: the store could be read.", bool(stored)))
        return found

    async def _of_store(self, services: Mapping[str, Service]) -> list[Metric]:
        """What is counted in memory, and what is first in an index."""
        counted = await changes.totals_of(self._core.database)
        waiting = dict(counted.services)
        since = await self._core.database.read_list(queue.waits_since, waiting)
        webhook, now = await self._core.database.read_list(webhooks.oldest), self._core.clock.now()
        jobs = Counter[tuple[str, JobState]]()
        for service, count in waiting.items():
            jobs[service, JobState.QUEUED] = count
        for (service, _, _, state), count in dict(counted.slots).items():
            jobs[service, state] += count
        oldest_s = 0.0 if webhook is None else (now - webhook) / SECOND
        text = "Since the oldest webhook that is to be sent was announced."
        return [
            *of_jobs(jobs, since, now, services),
            _one("ferryman_webhooks_oldest_seconds", text, oldest_s),
        ]


def _each(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """How things are now, by one label."""
    return gauge(name, text, (label,), {(one,): float(value) for one, value in values.items()})


def _one(name: str, text: str, value: float) -> Metric:
    return gauge(name, text, (), {(): float(value)})


def of_jobs(
    counted: Mapping[tuple[str, JobState], int],
    waits_since: Mapping[str, Micros],
    now: Micros,
    services: Mapping[str, Service],
) -> list[Metric]:
    """How many jobs there are of each service and state, and for how long they wait.

    A service that is neither in the settings nor was made by an operator is ``other``.
    """
    jobs = Counter[Labels]({(name, state): 0 for name in services for state in _JOB_STATES})
    oldest = dict.fromkeys(services, 0.0)
    for (name, state), count in counted.items():
        jobs[known(name, services), state] += count
    for name, since in waits_since.items():
        label = known(name, services)
        oldest[label] = max(oldest.get(label, 0.0), (now - since) / SECOND)
    waiting = "For how long the job waits that waits longest."
    return [
        gauge("ferryman_jobs", "Jobs that have not ended.", ("service", "state"), jobs),
        _each("ferryman_oldest_waiting_seconds", waiting, "service", oldest),
    ]


def _of_loops(troubles: Sequence[Trouble], loops: Sequence[Loop]) -> list[Metric]:
    kinds = Counter({kind.value: 0 for kind in SERVER_TROUBLES})
    kinds.update(one.kind.value for one in troubles)
    stuck = {one.name: not one.healthy for one in loops}
    late = "1: its last sweep that ended well is far longer ago than it should be."
    return [
        _each("ferryman_troubles", "What keeps the server from new work.", "kind", kinds),
        _each("ferryman_loop_stuck", late, "loop", stuck),
    ]


def _of_disk(disk: Disk | None, database: int | None) -> list[Metric]:
    found = []
    if database is not None:
        found.append(_one("ferryman_database_bytes", "Bytes of the database's file.", database))
    if disk is not None:
        least = "Free bytes that uploads must leave: min_free."
        found += [
            _one(
                "ferryman_disk_free_bytes", "Free bytes of the disk of the data folder.", disk.free
            ),
            _one("ferryman_disk_size_bytes", "Bytes of that disk.", disk.total),
            _one("ferryman_disk_min_free_bytes", least, disk.min_free),
        ]
    return found


def _of_agents(fleet: Registry, records: Sequence[AgentRecord] | None) -> list[Metric]:
    """The agents of the settings.

    Args:
        records: None: the store cannot be read.
    """
    agents = fleet.all()
    kept = {one.name: one.state for one in records or () if one.state is not AgentState.ACTIVE}
    states = Counter(dict.fromkeys(_AGENT_STATES, 0))
    states.update(_state(one, kept) for one in agents)
    agents = [one for one in agents if kept.get(one.name) is not AgentState.RETIRED]
    up = {one.name: one.accepts_work for one in agents}
    reachable = {one.name: one.reachable for one in agents}
    text = "1: the agent can be talked to."
    return [
        _each("ferryman_agents", "Agents of the settings, by state.", "state", states),
        _each("ferryman_agent_up", "1: the agent takes new jobs.", "agent", up),
        _each("ferryman_agent_reachable", text, "agent", reachable),
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


def _of_services(services: Mapping[str, Service], fleet: Registry) -> list[Metric]:
    """What is offered."""
    paused = {name: one.paused for name, one in services.items()}
    offered = {name: fleet.offered(name) for name in services}
    text, some = "1: an operator has paused the service.", "1: an agent offers the service, though "
    return [
        _each("ferryman_service_paused", text, "service", paused),
        _each("ferryman_service_offered", f"{some}perhaps not now.", "service", offered),
    ]
