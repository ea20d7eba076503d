"""The agents: what the server remembers of each, and what operators decide about them.

An agent of the settings needs no registration by an operator. It is known by its own id after it
was reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from server.domain import ending, states
from server.domain.agents import REMOVED, REPLACED, AgentRecord, Contact
from server.domain.errors import Conflict, NotFound
from server.domain.jobs import Job, Move
from server.stages.stage import MOVED_AT_ONCE, Core, Stage
from server.store import agents, changes, jobs
from shared.clock import SECOND, Micros
from shared.sql import Tx
from shared.units.sizes import say_count
from shared.wire import AgentHealth, AgentState, Reason

log = structlog.get_logger()
DRAINED: Final = "drained by an operator"
RETIRED: Final = "retired by an operator"
LOST: Final = "declared lost by an operator"
"""What an agent's message is where its operator gives none."""
_HEARD_EVERY_S: Final = 60.0
"""How old ``last_heard_at`` may get before it is written again."""


class Agents(Stage):
    """Keeps the records of the agents."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._configured: dict[str, Contact] = {}
        self._contacts: dict[str, tuple[Contact, Micros]] = {}
        """What each agent said last, as it was written, and when."""

    async def use(self, settings: Sequence[Contact]) -> list[AgentRecord]:
        """Register the agents of the settings, as far as these say what they are. Returns the
        records of all.
        """
        records = await self.core.database.write(agents.register, settings, self.core.clock.now())
        self._configured = {one.name: one for one in settings}
        self._contacts.clear()
        return records

    async def contacted(self, name: str, health: AgentHealth) -> None:
        """An agent of the settings was reached."""
        contact = replace(
            self._configured[name],
            agent_id=health.agent_id,
            version=health.version,
            resources={"slots": health.slots, "services": health.services},
            labels=health.labels,
        )
        now = self.core.clock.now()
        written, at = self._contacts.get(name, (None, 0))
        is_new = written != contact or self.core.registry.unreachable_s(name)
        if not is_new and now - at < _HEARD_EVERY_S * SECOND:
            return
        record = await self.core.database.write(agents.contacted, contact, self._configured, now)
        if contact.own_id not in (None, record.id):
            advice = "each agent needs a data folder of its own that was not copied from another"
            log.warning("agent.same_id", agent=name, agent_id=contact.own_id, advice=advice)
        self._contacts[name] = contact, now
        self.core.registry.remember([record])

    # -- the sweep

    async def run_once(self) -> int:
        """Store for how long agents were unreachable, and do what their states ask for. Returns how
        many jobs were moved.
        """
        records, moved = await self.core.database.read(agents.all_agents), 0
        unreachable = {
            record.id: unreachable_s
            for record in records
            if record.state is not AgentState.RETIRED
            and (unreachable_s := self.core.registry.unreachable_s(record.name)) is not None
        }
        if unreachable:  # a crash forgets what came since the last sweep
            await self.core.database.write(agents.add_unreachable, unreachable)
        for record in records:
            if record.state is AgentState.LOST:
                moved += await self._end_attempts(record.name)
            if record.state is not AgentState.RETIRED and record.name not in self._configured:
                retired = AgentState.RETIRED
                await self.core.database.write(
                    agents.set_state, record.id, retired, REMOVED, idle=True
                )
        return moved

    # -- operators

    def in_settings(self, name: str) -> bool:
        return name in self._configured

    async def find(self, name: str) -> AgentRecord:
        """The agent with this name, or else this id. Raises NotFound."""
        records = await self.core.database.read(agents.all_agents)
        named = [one for one in records if one.name == name]
        matches = named or [one for one in records if one.id == name]
        if not matches:
            raise NotFound("agent_not_found", f"this server knows no agent {name[:64]}")
        return max(
            matches, key=lambda one: (one.state is not AgentState.RETIRED, one.message != REPLACED)
        )

    async def drain(self, name: str, message: str) -> AgentRecord:
        """Give it no new jobs; those that it has are followed to their end. Raises NotFound,
        Conflict.
        """
        record = await self.find(name)
        if record.state is AgentState.RETIRED:
            why = f"agent {record.name} is retired: it gets no jobs"
            raise Conflict("agent_retired", why)
        return await self._set(record, AgentState.DRAINING, message)

    async def resume(self, name: str) -> AgentRecord:
        """Make it active again. Raises NotFound, Conflict."""
        record = await self.find(name)
        if record.name not in self._configured:
            why = f"agent {record.name} is not in the server's settings: write it there again"
            raise Conflict("agent_removed", why)
        if (await self.find(record.name)).id != record.id:
            why = f"another agent has the name {record.name} now"
            raise Conflict("agent_replaced", why)
        resumed = await self._set(record, AgentState.ACTIVE, "")
        self.core.wakeups.agent_changed()
        return resumed

    async def retire(self, name: str, message: str) -> AgentRecord:
        """Use it no more: it gets no jobs and is not contacted. Raises NotFound, Conflict: it
        has jobs.
        """
        record = await self.find(name)
        retired = await self.core.database.write(
            agents.set_state, record.id, AgentState.RETIRED, message, idle=True
        )
        if retired is None:
            held = (await changes.totals_of(self.core.database)).agents[record.name]
            raise Conflict(
                "agent_has_jobs",
                f"agent {record.name} has {say_count(held, 'job')}: drain it and wait until they "
                "have ended, or declare it lost",
            )
        self.core.registry.remember([retired])
        log.info("agent.retired", agent=record.name, why=message)
        return retired

    async def declare_lost(self, name: str, message: str) -> tuple[AgentRecord, int]:
        """End all attempts that it has, at once: its operator says that it will not come back.
        Returns its record, and how many attempts were ended. Raises NotFound, Conflict: it can
        be reached, or is retired.
        """
        record = await self.find(name)
        if record.state is AgentState.RETIRED:
            why = f"agent {record.name} is retired: it has no jobs"
            raise Conflict("agent_retired", why)
        agent = self.core.registry.named(record.name)
        if agent is not None and agent.reachable:
            raise Conflict(
                "agent_reachable",
                f"agent {record.name} can be reached, so its jobs are not lost: stop it first, or "
                "drain it",
            )
        lost = await self._set(record, AgentState.LOST, message)
        ended = await self._end_attempts(record.name)
        self.core.wakeups.agent_changed()
        return lost, ended

    async def _set(self, record: AgentRecord, state: AgentState, message: str) -> AgentRecord:
        changed = await self.core.database.write(agents.set_state, record.id, state, message)
        if changed is None:  # it has said meanwhile what its own id is, and may be reachable
            raise Conflict(
                "agent_replaced", f"agent {record.name} is another now: look at it again"
            )
        self.core.registry.remember([changed])
        log.info("agent.state_set", agent=record.name, state=state, why=message)
        return changed

    async def _end_attempts(self, name: str) -> int:
        message = f"agent {name} was declared lost, whether its processes are dead is not known"

        def find(tx: Tx) -> list[Job]:
            record = agents.current(tx, name)
            if record is None or record.state is not AgentState.LOST:
                return []  # an operator has resumed it, or it is back
            return jobs.in_states(tx, states.HOLDS_SLOT, name, MOVED_AT_ONCE)

        def rule(job: Job) -> Move:
            return self._decide(ending.interrupted, job, Reason.AGENT_LOST, message)

        moved = 0
        while some := await self._move_some(find, rule):
            moved += some
        return moved
