"""An attempt: one try at running a job on one agent."""

from __future__ import annotations

from dataclasses import dataclass

from server.domain.jobs import Execution
from shared.clock import Micros


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
