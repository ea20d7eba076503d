"""The agents: what the server remembers of each, and what operators decide about them.

An agent of the settings needs no registration by an operator. It is known by its own id after it
was reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from server.domain import ending, states
from server.domain.agents import REMOVED, AgentRecord, Contact
from server.domain.errors import Conflict
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

    async def drain(self, name: str, message: str) -> AgentRecord:
        """Give it no new jobs; those that it has are followed to their end. Raises NotFound,
        Conflict.
        """
        check = partial(_in_use, why="it gets no jobs")
        return await self._set(name, AgentState.DRAINING, message, check)

    async def resume(self, name: str) -> AgentRecord:
        """Make it active again. Raises NotFound, Conflict."""

        def check(tx: Tx, record: AgentRecord) -> None:
            if record.name not in self._configured:
                why = f"agent {record.name} is not in the server's settings: write it there again"
                raise Conflict("agent_removed", why)
            if agents.find(tx, record.name).id != record.id:
                why = f"another agent has the name {record.name} now"
                raise Conflict("agent_replaced", why)

        resumed = await self._set(name, AgentState.ACTIVE, "", check)
        self.core.wakeups.agent_changed()
        return resumed

    async def retire(self, name: str, message: str) -> AgentRecord:
        """Use it no more: it gets no jobs and is not contacted. Raises NotFound, Conflict: it
        has jobs.
        """

        def check(tx: Tx, record: AgentRecord) -> None:
            if held := changes.all_of(tx).agents[record.name]:
                raise Conflict(
                    "agent_has_jobs",
                    f"agent {record.name} has {say_count(held, 'job')}: drain it and wait until "
                    "they have ended, or declare it lost",
                )

        return await self._set(name, AgentState.RETIRED, message, check)

    async def declare_lost(self, name: str, message: str) -> tuple[AgentRecord, int]:
        """End all attempts that it has, at once: its operator says that it will not come back.
        Returns its record, and how many attempts were ended. Raises NotFound, Conflict: it can
        be reached, or is retired.
        """

        def check(tx: Tx, record: AgentRecord) -> None:
            _in_use(tx, record, "it has no jobs")
            agent = self.core.registry.named(record.name)
            if agent is not None and agent.reachable:
                raise Conflict(
                    "agent_reachable",
                    f"agent {record.name} can be reached, so its jobs are not lost: stop it first, "
                    "or drain it",
                )

        lost = await self._set(name, AgentState.LOST, message, check)
        ended = await self._end_attempts(lost.name)
        self.core.wakeups.agent_changed()
        return lost, ended

    async def _set(
        self, name: str, state: AgentState, message: str, check: Callable[[Tx, AgentRecord], None]
    ) -> AgentRecord:
        """``check`` raises what speaks against it, of the agent as it is then."""

        def change(tx: Tx) -> AgentRecord:
            record = agents.find(tx, name)
            check(tx, record)
            return agents.set_state(tx, record.id, state, message) or record

        changed = await self.core.database.write(change)
        self.core.registry.remember([changed])
        log.info("agent.state_set", agent=changed.name, state=state, why=message)
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


def _in_use(_: Tx, record: AgentRecord, why: str) -> None:
    if record.state is AgentState.RETIRED:
        raise Conflict("agent_retired", f"agent {record.name} is retired: {why}")
