"""The records of the agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from server.domain.agents import AgentRecord, Contact
from shared.clock import Micros
from shared.wire import AgentState


class AgentRecords(Protocol):
    """A row for each agent that there is, or was. Of those with one name at most one is not
    retired.
    """

    async def all(self) -> list[AgentRecord]:
        """Each agent, the retired ones included, by name."""
        ...

    async def enter(self, agents: Sequence[Contact], at: Micros) -> list[AgentRecord]:
        """Make rows for the agents of the settings, and for those that only jobs name, and take up
        again those of the settings that were retired for being no longer there.

        Returns:
            As :meth:`all`.
        """
        ...

    async def contacted(
        self, contact: Contact, settings: Mapping[str, str], at: Micros
    ) -> AgentRecord:
        """An agent was reached. One that has a new name takes the jobs that it has along; one whose
        name another agent has now is retired; a lost one is active again.

        Args:
            settings: name -> address of all agents of the settings. An id that comes from two of
                them stays with the one that has it; the other one gets an id by its name.

        Returns:
            Its record.
        """
        ...

    async def set_state(
        self, agent_id: str, state: AgentState, message: str, *, idle: bool = False
    ) -> AgentRecord | None:
        """Change its state.

        Args:
            idle: only if it has no jobs, found out in the same transaction.

        Returns:
            None: it has jobs.
        """
        ...

    async def add_unreachable(self, unreachable_s: Mapping[str, float]) -> None:
        """Keep for how long agents, by id, could not be reached; less than is known is ignored."""
        ...
