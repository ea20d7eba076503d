"""Metrics of the parts of a running server, which are known without the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric

from server.domain.agents import AgentRecord
from server.domain.service import Service
from server.domain.troubles import SERVER_TROUBLES, Trouble
from server.ports import Agent, Fleet, Held, Measures, Vitals
from server.stages.results import WaitingResults
from shared.metrics import Labels, gauge
from shared.wire import AgentState

_STATES: Final = ("accepting", "unfit", "unreachable", "draining", "retired", "lost")


def of_server(troubles: Sequence[Trouble], vitals: Vitals) -> list[Metric]:
    """Its troubles, disk, database and loops."""
    kinds = Counter[Labels]({(kind.value,): 0 for kind in SERVER_TROUBLES})
    kinds.update((one.kind.value,) for one in troubles)
    found: list[Metric] = [
        gauge("ferryman_troubles", "What keeps the server from new work.", ("kind",), kinds),
        gauge(
            "ferryman_loop_age_seconds",
            "Since the last sweep of a loop that ended well.",
            ("loop",),
            {(one.name,): one.last_ok_s for one in vitals.loops},
        ),
        gauge(
            "ferryman_loop_stuck",
            "1: that is far longer ago than it should be.",
            ("loop",),
            {(one.name,): float(one.stuck) for one in vitals.loops},
        ),
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


def of_agents(
    fleet: Fleet, records: Sequence[AgentRecord] | None, held: Sequence[Held]
) -> list[Metric]:
    """The agents of the settings.

    Args:
        records: None: the store cannot be read.
    """
    agents = fleet.all()
    jobs = Counter[Labels]({(one.name,): 0 for one in agents})
    for one in held:
        if (one.agent,) in jobs:
            jobs[one.agent,] += one.slots
    kept = {one.name: one.state for one in records or () if one.state is not AgentState.ACTIVE}
    states = Counter[Labels]({(state,): 0 for state in _STATES})
    states.update((_state(one, kept),) for one in agents)
    agents = [one for one in agents if kept.get(one.name) is not AgentState.RETIRED]
    labels = ("agent",)
    return [
        gauge("ferryman_agents", "Agents of the settings, by state.", ("state",), states),
        gauge(
            "ferryman_agent_up",
            "1: the agent takes new jobs.",
            labels,
            {(one.name,): float(one.accepts_work) for one in agents},
        ),
        gauge(
            "ferryman_agent_reachable",
            "1: the agent can be talked to.",
            labels,
            {(one.name,): float(one.reachable) for one in agents},
        ),
        gauge(
            "ferryman_agent_slots",
            "How many jobs the agent says that it runs at once.",
            labels,
            {(one.name,): float(one.slots or 0) for one in agents},
        ),
        gauge("ferryman_agent_jobs", "Slots that jobs hold at the agent.", labels, jobs),
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


def of_services(services: Mapping[str, Service], fleet: Fleet) -> list[Metric]:
    """What is offered."""
    labels = ("service",)
    return [
        gauge(
            "ferryman_service_paused",
            "1: an operator has paused the service.",
            labels,
            {(name,): float(one.paused) for name, one in services.items()},
        ),
        gauge(
            "ferryman_service_offered",
            "1: an agent offers the service, though perhaps not now.",
            labels,
            {(name,): float(fleet.offered(name)) for name in services},
        ),
    ]


def of_results_waiting(waiting: WaitingResults) -> list[Metric]:
    """The results that are still at agents."""
    labels, reason = ("reason",), ("disk",)
    return [
        gauge(f"ferryman_results_waiting{name}", meaning, labels, {reason: value})
        for name, meaning, value in (
            ("", "Results that cannot be stored now.", len(waiting)),
            ("_bytes", "Bytes that they need.", waiting.size),
            ("_oldest_seconds", "For how long the oldest of them waits.", waiting.oldest_s),
        )
    ]


def of_listeners(measures: Measures) -> Metric:
    """Who follows events."""
    return gauge(
        "ferryman_event_listeners",
        "Streams of server-sent events that are open.",
        ("route",),
        {(route,): count for route, count in measures.listeners.items()},
    )
