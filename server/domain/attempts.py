"""An attempt: one try at running a job on one agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.domain.jobs import Result
from shared.clock import Micros
from shared.wire import JobState, Limits, Reason, Usage


@dataclass(frozen=True, slots=True)
class Attempt:
    """A row of the store. An attempt that no agent took leaves none."""

    job_id: int
    number: int
    """From 1."""
    state: JobState
    """The job's while it is under way; Completed, Failed or Cancelled once it has ended."""
    agent: str
    limits: Limits
    timeout_s: float
    claimed_at: Micros
    agent_id: str | None = None
    payload_id: int | None = None
    lease: int = 0
    """Token of the lease under which it was sent."""
    submitted_at: Micros | None = None
    started_at: Micros | None = None
    ended_at: Micros | None = None
    message: str = ""
    reason: Reason | None = None
    exit_code: int | None = None
    stderr_tail: str = ""
    warnings: tuple[str, ...] = ()
    enforcement: Mapping[str, str] = field(default_factory=dict)
    usage: Usage | None = None
    result: Result | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    """What its logs hold in the result."""
