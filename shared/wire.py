"""Models that more than one side speaks, exactly as they are on the wire.

Unknown fields are ignored, so that versions can differ by a field; unknown states are an error,
never a silent "Unknown".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


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


class PayloadState(StrEnum):
    """States of a payload on an agent."""

    PREPARED = "Prepared"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    INVALID = "Invalid"
    KILLED = "Killed"
    CLEANED = "Cleaned"


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

    wall_s: float
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None


class Order(Wire):
    """What a server of ours sends to an agent of ours beside the bundle (field ``order``)."""

    server: str
    """Identity of the server's database: keys of two servers never collide on one agent."""
    key: str
    """``job.attempt``, see :class:`shared.ids.AttemptKey`."""
    service: str
    user_id: str
    timeout_s: float = Field(gt=0)
    """Wall time of the attempt."""
    limits: Limits
    bundle_digest: str
    """SHA-256 of the content, hex, see :mod:`shared.files.bundle`."""
    bundle_size: int
    """Bytes of the sealed ZIP."""


class ResultInfo(Wire):
    """A result that can be fetched."""

    size: int
    """Bytes of the ZIP."""
    sha256: str
    """Of the ZIP file, hex."""


class PayloadDoc(Wire):
    """A payload as its agent tells it. The first six fields are what job-orchestrator reads."""

    id: int
    status: PayloadState
    loc: str = ""
    pid: int = 0
    killed: bool = False
    input: dict[str, Any] = Field(default_factory=dict)

    server: str | None = None
    key: str | None = None
    bundle_digest: str | None = None
    """Of the bundle that it was submitted with; None from an agent that does not say it yet."""
    reason: Reason | None = None
    message: str = ""
    exit_code: int | None = None
    interrupted: bool = False
    """It ended through no fault of the bundle (agent killed or stopped): it may be tried again."""
    stderr_tail: str = ""
    usage: Usage | None = None
    result: ResultInfo | None = None
    """There once the attempt has ended, whatever its state, unless nothing could be collected."""
    created_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    warnings: list[str] = Field(default_factory=list)
    """Things the user should know that did not decide the outcome."""
    enforcement: dict[str, str] = Field(default_factory=dict)
    """limit -> "hard" or "soft" or "none", as enforced for this attempt."""


class PayloadList(Wire):
    """``GET /payloads``: everything not yet acknowledged, as of ``seq``."""

    seq: int
    payloads: list[PayloadDoc]


class AgentEvent(Wire):
    """One line of ``GET /events``. Without a payload it is a keepalive."""

    seq: int
    payload: PayloadDoc | None = None


class Settled(Wire):
    """``POST /keys/{server}/{key}/settle``: the payload, or the promise that there will be none."""

    payload: PayloadDoc | None


class AgentHealth(Wire):
    """``GET /health`` of an agent of ours. job-orchestrator's client has only ``status``."""

    status: str
    database: str = "ok"
    agent: str | None = None
    """Name of the agent; its absence tells a job-orchestrator client."""
    version: str | None = None
    slots: int | None = None
    running: int | None = None
    services: list[str] | None = None
    """Services offered; None: any."""
    sandbox: dict[str, Any] | None = None
    """Backend, self-test, which limits are hard."""
    message: str = ""


class StatusBody(Wire):
    """The body of the reference routes, where Cancelled is Killed; the last three are ours."""

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


class Problem(Wire):
    """RFC 9457, ``application/problem+json``."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    part: str | None = None
    """The field or part of a form that is wrong."""
    request_id: str | None = None
