"""A job, and how it moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from server.domain import states
from server.domain.errors import IllegalTransition
from shared.clock import Micros
from shared.ids import AttemptKey
from shared.wire import JobState, Limits, Reason, Usage


@dataclass(frozen=True, slots=True)
class Bundle:
    """A sealed bundle in storage."""

    file: str
    """Name in the storage."""
    size: int
    """Bytes of the ZIP."""
    digest: str
    """Of the content, see ``shared.files.bundles.format``."""


@dataclass(frozen=True, slots=True)
class Result:
    """A sealed result in storage."""

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


@dataclass(frozen=True, slots=True)
class Job:
    """A row of the store."""

    id: int
    state: JobState
    user_id: str
    service: str
    created_at: Micros
    queued_at: Micros
    """When it was queued last."""
    bundle: Bundle | None
    """None once Cleaned."""
    limits: Limits
    timeout_s: float
    name: str | None = None
    tags: tuple[str, ...] = ()
    priority: int = 0
    attempt: int = 0
    retries_used: int = 0
    infra_used: int = 0
    message: str = ""
    reason: Reason | None = None
    exit_code: int | None = None
    stderr_tail: str = ""
    upload_warnings: tuple[str, ...] = ()
    """What was noticed when it was uploaded."""
    warnings: tuple[str, ...] = ()
    """Of the attempt that ended last."""
    enforcement: Mapping[str, str] = field(default_factory=dict)
    usage: Usage | None = None
    agent: str | None = None
    payload_id: int | None = None
    result: Result | None = None
    submitted_at: Micros | None = None
    started_at: Micros | None = None
    ended_at: Micros | None = None
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
    def files(self) -> list[tuple[str, str]]:
        """Kind and name of each sealed file that it has."""
        bundle = [("bundles", self.bundle.file)] if self.bundle else []
        return bundle + ([("results", self.result.file)] if self.result else [])

    @property
    def ended(self) -> bool:
        return self.state in states.ENDED


@dataclass(frozen=True, slots=True)
class Move:
    """One step through the table, made only if the job is still as it was seen.

    Raises:
        IllegalTransition: the table has no such step.
    """

    job_id: int
    attempt: int
    """As seen; a claim (Queued → Processing) makes it one more."""
    before: JobState
    to: JobState
    at: Micros
    message: str
    reason: Reason | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of :class:`Job` to set."""

    def __post_init__(self) -> None:
        if self.to not in states.NEXT[self.before]:
            raise IllegalTransition(self.job_id, self.before, self.to)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's history, written with the move it tells of."""

    seq: int
    job_id: int
    at: Micros
    attempt: int
    before: JobState | None
    state: JobState
    reason: Reason | None
    message: str
