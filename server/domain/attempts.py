"""An attempt: one try at running a job on one agent."""

from __future__ import annotations

from dataclasses import dataclass

from server.domain.agents import id_by_name
from server.domain.jobs import Execution
from shared.clock import Micros
from shared.ids import AttemptKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Execution):
    """A row of the store. An attempt that no agent took leaves none.

    Its state is the job's while it is under way; Completed, Failed or Cancelled once it has ended.
    """

    job_id: int
    number: int
    """From 1."""
    agent: str
    claimed_at: Micros
    agent_id: str | None = None
    lease: int = 0
    """Token of the lease under which it was sent."""
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    """What its logs hold in the result."""

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(self.job_id, self.number)

    def was_sent_to(self, agent: str, agent_id: str | None) -> bool:
        """Whether this is its agent. One that is renamed is renamed in the jobs that it has, but
        not in past attempts: these say its id, if it had said one.
        """
        if agent_id is None or self.agent_id in (None, id_by_name(self.agent)):
            return self.agent == agent
        return self.agent_id == agent_id
