"""Which agents there are, which can be talked to, and who gets the next job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from server.agents.agent import Agent
from server.domain.agents import REPLACED, AgentRecord
from server.domain.choose import Candidate
from server.domain.retry import Backoff
from shared.clock import Clock
from shared.wire import AgentHealth, AgentState, AgentStatus

_PROBE_S: Final = 60.0
"""How long one job tries out an agent that refused the last one, before another may."""
_REFUSED_FIRST_S: Final = 5.0
_REFUSED_LONGEST_S: Final = 600.0
_LATE_S: Final = 2.0
"""An agent sends a heartbeat each second: what an older one said is not how it is now."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    until: float
    """Monotonic time, until when the agent gets no job of the service."""
    why: str
    offered: bool
    """False: the agent does not offer the service at all."""
    probing: bool = False
    """One job is trying it out."""


class Registry:
    """The agents."""

    def __init__(self, clients: Sequence[Agent], clock: Clock) -> None:
        self._clients: dict[str, Agent] = {}
        self._unreachable_before: dict[str, float] = {}
        """agent -> for how long it could not be reached, as its record says"""
        self._clock = clock
        self._unreachable_since: dict[str, float] = {}
        """agent -> since when it cannot be reached; while it can, since when it could not last"""
        self._refusals: dict[tuple[str, str], _Refusal] = {}
        self._backoff = Backoff[tuple[str, str]](_REFUSED_FIRST_S, _REFUSED_LONGEST_S)
        self.use(clients)

    def use(self, clients: Sequence[Agent]) -> None:
        """These are the agents from now on. Of one with a new client nothing is remembered but for
        how long it could not be reached.
        """
        former, self._clients = self._clients, {client.name: client for client in clients}
        for name, old in former.items():
            if self._clients.get(name) is old:
                continue
            if old.reachable:
                self._unreachable_since[name] = self._clock.monotonic()
            for which in [one for one in self._refusals if one[0] == name]:
                self.accepted(*which)

    # -- whom to give a job

    def candidates(self, service: str) -> list[Candidate]:
        """The agents that take jobs of the service now."""
        return [
            Candidate(
                client.name,
                client.slots,
                client.prefetch,
                most=1 if (client.name, service) in self._refusals else None,
                max_runs=client.max_runs.get(service),
                packs=client.packs,
            )
            for client in self._clients.values()
            if client.accepts_work
            and _offers(client, service)
            and not self._refuses(client, service)
        ]

    def _refuses(self, client: Agent, service: str) -> str:
        """Why it gets no job of the service now; empty: it does."""
        refusal = self._refusals.get((client.name, service))
        return refusal.why if refusal and self._clock.monotonic() < refusal.until else ""

    def claimed(self, name: str, service: str) -> None:
        """A job was claimed for the agent."""
        refusal = self._refusals.get((name, service))
        if refusal is not None:  # one job tries it out, the others wait for what becomes of it
            until = self._clock.monotonic() + _PROBE_S
            self._refusals[name, service] = replace(refusal, until=until, probing=True)

    def refused(
        self, name: str, service: str, why: str, *, offered: bool, at_least_s: float
    ) -> float:
        """It refused a job: it gets none of the service for so many seconds, longer each time.
        Not ``offered``: it does not offer the service at all.
        """
        which = (name, service)
        known = self._refusals.get(which)
        now = self._clock.monotonic()
        if known is not None and not known.probing and now < known.until:
            return known.until - now  # another of the jobs that were under way together
        rest = max(self._backoff.failed(which), at_least_s)
        self._refusals[which] = _Refusal(now + rest, why, offered)
        return rest

    def accepted(self, name: str, service: str) -> None:
        """It took one."""
        self._refusals.pop((name, service), None)
        self._backoff.succeeded((name, service))

    def offered(self, service: str) -> bool:
        """Whether an agent offers the service, though perhaps not now."""
        return any(
            _offers(client, service)
            and not (
                (refusal := self._refusals.get((client.name, service))) and not refusal.offered
            )
            for client in self._clients.values()
        )

    def why_none(
        self, service: str, held: Mapping[str, int], runs: Mapping[str, int] | None = None
    ) -> str:
        """A sentence for people: why no agent takes a job now; empty: one does.

        Args:
            held: agent's name -> jobs that it has.
            runs: agent's name -> those of the service.
        """
        offering = [client for client in self._clients.values() if _offers(client, service)]
        if not offering:
            return f"no agent of this server offers the service {service}"
        able, have = self.candidates(service), runs or {}
        full = [one for one in able if have.get(one.name, 0) >= (one.max_runs or math.inf)]
        left = [one for one in able if one not in full]
        if any(one.takes(held.get(one.name, 0)) for one in left):
            return ""
        reasons = [
            f"agent {one.name} has as many jobs of {service} as it may have: {one.max_runs}"
            for one in full
        ]
        if left:
            slots = sum(client.slots or 0 for client in left)
            which = "agent" if len(left) == 1 else f"{len(left)} agents"
            taken = f"all {slots} slots of the {which} that can take it are taken"
            if slots == 1:
                taken = f"the only slot of the {which} that can take it is taken"
            reasons.append(taken)
        if able:
            return "; ".join(reasons)
        reasons = [client.trouble or self._refuses(client, service) for client in offering]
        return "; ".join(filter(None, reasons))

    # -- who is there

    def named(self, name: str) -> Agent | None:
        return self._clients.get(name)

    def all(self) -> Sequence[Agent]:
        return list(self._clients.values())

    def remember(self, records: Sequence[AgentRecord]) -> None:
        """Take over what the records say: states, and for how long agents were unreachable."""
        for record in records:
            client = self._clients.get(record.name)
            if record.state is AgentState.RETIRED and record.message == REPLACED:
                continue
            if client is not None:
                client.agent_id = record.id
            if client is not None and client.operator_state is not record.state:
                client.operator_state = record.state
                client.state_changed.set()
            self._unreachable_before[record.name] = record.unreachable_s

    def unreachable_s(self, name: str) -> float | None:
        """For how many seconds it could not be reached; None: it can be."""
        client = self._clients.get(name)
        if client is not None and client.reachable:
            return None
        now = self._clock.monotonic()
        since = now - self._unreachable_before.get(name, 0.0)
        return now - self._unreachable_since.setdefault(name, since)

    def silent_s(self, client: Agent) -> float | None:
        """For how long a reachable agent that sends heartbeats has sent none; None: it is in time,
        or whether it is cannot be known.
        """
        heard, now = client.heartbeat_at, self._clock.monotonic()
        return now - heard if heard is not None and now - heard > _LATE_S else None

    def mark_up(self, client: Agent, health: AgentHealth) -> None:
        """It was reached, and says this of itself."""
        client.contact()
        client.heard_at = self._clock.now()
        client.health, client.unhealthy = health, ""
        if health.status != "ok" or not health.ready:
            well = health.draining or health.status == "ok"
            how = "gets no new jobs" if well else "is unhealthy"
            client.unhealthy = f"agent {client.name} {how}: {health.message or health.status}"

    def mark_status(self, client: Agent, status: AgentStatus) -> bool:
        """How it is now. Returns whether it may be able to take more than before."""
        client.heartbeat_at = self._clock.monotonic()
        health = client.health
        if health is None:
            return False
        now: dict[str, float] = {"slots": status.slots, "running": status.running}
        if status.load is not None:
            now["load"] = status.load
        client.health = health.model_copy(update=now)
        return status.slots > (health.slots or 0)

    def mark_down(self, client: Agent, why: str) -> None:
        """It cannot be reached."""
        if client.reachable:
            self._unreachable_since[client.name] = self._clock.monotonic()
        client.contact(why)
        client.heartbeat_at = None


def _offers(client: Agent, service: str) -> bool:
    if client.services:
        return service in client.services
    offered = client.health.services if client.health else None
    return offered is None or service in offered
