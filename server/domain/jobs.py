"""A job, and how it moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from server.domain import states
from server.domain.errors import IllegalTransition
from server.domain.leases import Lease
from shared.clock import Micros
from shared.ids import AttemptKey
from shared.wire import JobState, Limits, Reason, Usage


@dataclass(frozen=True, slots=True)
class Bundle:
    """A stored bundle."""

    file: str
    """Name in the storage."""
    size: int
    """Bytes of the ZIP."""
    digest: str
    """Of the content, see ``shared.files.bundles.format``."""


@dataclass(frozen=True, slots=True)
class Result:
    """A stored result."""

    file: str
    size: int
    sha256: str
    """Of the ZIP."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """What an upload asks for."""

    user_id: str
    service: str
    bundle: Bundle
    limits: Limits
    timeout_s: float
    created_at: Micros
    name: str | None = None
    tags: tuple[str, ...] = ()
    idempotency_key: str | None = None
    warnings: tuple[str, ...] = ()
    submitted_by: str | None = None
    """Name of the principal who uploaded it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What is known of an attempt; a job shows it of its latest one."""

    state: JobState
    limits: Limits
    timeout_s: float
    payload_id: int | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Execution):
    """A row of the store."""

    id: int
    user_id: str
    service: str
    created_at: Micros
    queued_at: Micros
    """When it was queued last."""
    bundle: Bundle | None
    """None once Cleaned."""
    name: str | None = None
    tags: tuple[str, ...] = ()
    priority: int = 0
    attempt: int = 0
    retries_used: int = 0
    infra_used: int = 0
    upload_warnings: tuple[str, ...] = ()
    """What was noticed when it was uploaded."""
    agent: str | None = None
    not_before: Micros = 0
    """Queued: when it may be sent; 0: now."""
    expires_at: Micros | None = None
    cancel_requested_at: Micros | None = None
    submitted_by: str | None = None
    """Name of the principal who uploaded it; None: unknown, it is from an older release."""

    @property
    def key(self) -> AttemptKey:
        """Names the current attempt towards agents."""
        return AttemptKey(self.id, self.attempt)

    @property
    def ended(self) -> bool:
        return self.state in states.ENDED


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of the table, which is one line of the history."""

    to: JobState
    at: Micros
    message: str
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One or more steps through the table, made together and only if the job is still as seen.

    Raises:
        IllegalTransition: the table has no such step.
    """

    job_id: int
    attempt: int
    """As seen; a claim makes it one more."""
    before: JobState
    to: JobState
    at: Micros
    message: str
    reason: Reason | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of :class:`Job` to set."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the attempt to set; those of a job that ends by this move, too."""
    through: tuple[Step, ...] = ()
    """Steps on the way from ``before`` to ``to``."""
    lease: Lease | None = None
    """Made only while this lease is the one that holds."""

    def __post_init__(self) -> None:
        state = self.before
        for step in self.steps:
            if step.to not in states.NEXT[state]:
                raise IllegalTransition(self.job_id, state, step.to)
            state = step.to

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them, the last one to ``to``."""
        return (*self.through, Step(self.to, self.at, self.message, self.reason))


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's history, written with the step that it is about."""

    seq: int
    job_id: int
    at: Micros
    attempt: int
    before: JobState | None
    state: JobState
    reason: Reason | None
    message: str
