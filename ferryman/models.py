"""The documents that a server and its clients exchange, exactly as they are on the wire.

Unknown fields are ignored, so that versions can differ by a field; unknown states are an error,
never a silent "Unknown". This is the one definition: the server reads it through ``shared.wire``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat


class JobState(StrEnum):
    """States of a job on the server. What may follow what: ``server.domain.states``."""

    QUEUED = "Queued"
    PROCESSING = "Processing"
    SUBMITTED = "Submitted"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    CANCELLED = "Cancelled"
    CLEANED = "Cleaned"


class AgentState(StrEnum):
    """What an operator wants of an agent, and what became of it."""

    ACTIVE = "active"
    DRAINING = "draining"
    """It gets no new jobs; those that it has are followed to their end."""
    LOST = "lost"
    """Given up: its attempts were ended. It is active again once it is reached."""
    RETIRED = "retired"
    """Not used any more: it gets no jobs and is not contacted."""


AgentAction: TypeAlias = Literal["drain", "resume", "retire", "lost"]


class Reason(StrEnum):
    """Why a job failed, for programs; a sentence for people stands beside it."""

    EXIT_CODE = "exit_code"
    TIMEOUT = "timeout"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    MEMORY_LIMIT = "memory_limit"
    PIDS_LIMIT = "pids_limit"
    CPU_LIMIT = "cpu_limit"
    DISK_LIMIT = "disk_limit"
    LOG_LIMIT = "log_limit"
    RESULTS_LIMIT = "results_limit"
    SANDBOX_ERROR = "sandbox_error"
    AGENT_ERROR = "agent_error"
    AGENT_UNREACHABLE = "agent_unreachable"
    AGENT_LOST = "agent_lost"
    NOT_OFFERED = "not_offered"
    SHUTDOWN = "shutdown"
    INVALID_BUNDLE = "invalid_bundle"
    CHILD_FAILED = "child_failed"


class Wire(BaseModel):
    """Base of everything on the wire: immutable, tolerant of newer fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Limits(Wire):
    """What one attempt may use. Sizes in bytes."""

    cpus: float = Field(1.0, gt=0)
    memory: int = Field(2 << 30, gt=0)
    pids: int = Field(256, gt=0)
    disk: int = Field(2 << 30, gt=0)
    log: int = Field(16 << 20, gt=0)
    results: int = Field(2 << 30, gt=0)
    network: bool = False


class Usage(Wire):
    """What one attempt used; None where the host cannot tell."""

    wall_s: FiniteFloat
    cpu_s: FiniteFloat | None = None
    peak_memory_bytes: int | None = None


class StatusBody(Wire):
    """The body of job-orchestrator's routes, where Cancelled is Killed; the last three are ours."""

    id: int
    status: str
    message: str
    reason: Reason | None = None
    exit_code: int | None = None
    stderr_tail: str | None = None


class Progress(Wire):
    current: float
    total: float | None = None


class QueueInfo(Wire):
    """Why a queued job waits."""

    position: int
    """1 is next among the user's own jobs of the service."""
    reason: str


class Links(Wire):
    self: str
    events: str
    logs: str | None = None
    result: str | None = None
    partial: str | None = None
    attempts: str | None = None


class JobDoc(Wire):
    """The job document, the same everywhere."""

    id: int
    status: JobState
    message: str
    user_id: str
    service: str
    name: str | None = None
    tags: list[str] = Field(default_factory=list)
    priority: int = 0
    attempt: int
    retries_left: int
    ended: bool
    reason: Reason | None = None
    exit_code: int | None = None
    stderr_tail: str = ""
    """The last lines of stderr of the latest attempt that ended."""
    warnings: list[str] = Field(default_factory=list)
    progress: Progress | None = None
    output: dict[str, str] = Field(default_factory=dict)
    agent: str | None = None
    timeout_s: float | None = None
    """Wall time of an attempt."""
    limits: Limits | None = None
    """What an attempt may use: the service's, or less where the upload asked for less."""
    enforcement: dict[str, str] = Field(default_factory=dict)
    parent_id: int | None = None
    children: list[int] | None = None
    queue: QueueInfo | None = None
    created_at: str
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    heartbeat_at: str | None = None
    not_before: str | None = None
    expires_at: str | None = None
    cancel_requested_at: str | None = None
    usage: Usage | None = None
    links: Links


class AttemptLinks(Wire):
    result: str | None = None
    """A ZIP of what it left; None: nothing, or not yet."""
    stdout: str | None = None
    stderr: str | None = None


class AttemptDoc(Wire):
    """One try at running a job on one agent."""

    number: int
    """From 1. Numbers are missing where no agent took the attempt."""
    status: JobState
    """The job's while it is under way; Completed, Failed or Cancelled once it has ended."""
    message: str = ""
    reason: Reason | None = None
    exit_code: int | None = None
    stderr_tail: str = ""
    warnings: list[str] = Field(default_factory=list)
    agent: str
    agent_id: str | None = None
    timeout_s: float
    limits: Limits
    enforcement: dict[str, str] = Field(default_factory=dict)
    usage: Usage | None = None
    claimed_at: str
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    result_size: int | None = None
    """Bytes of the ZIP."""
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    """What its logs hold."""
    links: AttemptLinks


class AttemptPage(Wire):
    """All attempts of a job, the first one first."""

    items: list[AttemptDoc]


class AgentDoc(Wire):
    """An agent, as an operator sees it."""

    name: str
    id: str
    """Its own, which it keeps under another name or address."""
    state: AgentState
    message: str = ""
    """Why it is in this state."""
    up: bool
    """Whether it may get new jobs."""
    reachable: bool
    trouble: str = ""
    """Why it gets no new jobs, in a sentence; empty: it does."""
    kind: str
    """"ferryman" or "job-orchestrator"; empty: not known any more."""
    address: str
    in_settings: bool
    jobs: int
    """Jobs of this server that it has."""
    running: int
    slots: int | None = None
    version: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    health: dict[str, Any] | None = None
    """What it said of itself last."""
    created_at: str
    last_heard_at: str | None = None
    unreachable_s: float | None = None
    """Seconds since it could be reached, as far as a server was running; None: it can be."""


class AgentPage(Wire):
    """``GET /api/v1/agents``."""

    items: list[AgentDoc]


class JobPage(Wire):
    items: list[JobDoc]
    next: str | None
    """Cursor of the next page; None on the last."""


class EventDoc(Wire):
    """One line of a job's history."""

    seq: int
    at: str
    attempt: int
    before: JobState | None
    status: JobState
    reason: Reason | None = None
    message: str = ""


class EventPage(Wire):
    items: list[EventDoc]
