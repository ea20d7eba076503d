"""The documents about jobs, exactly as they are on the wire.

Unknown fields are ignored, so that versions can differ by a field; unknown states are an error,
never a silent "Unknown". This is the one definition: the server reads it through ``shared.wire``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat

from ferryman.states import JobState, Reason, WaitReason


class Wire(BaseModel):
    """Base of everything on the wire: immutable, tolerant of newer fields."""

    # Each model is built at its first use: a program that starts needs few of them.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


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


class UploadLinks(Wire):
    """Where somebody who uploaded by a ticket follows the job, without a token, for a day."""

    job: str
    page: str
    events: str
    logs: str
    files: str
    result: str


class StatusBody(Wire):
    """The body of job-orchestrator's routes, where Cancelled is Killed; the last five are ours."""

    id: int
    status: str
    message: str
    reason: Reason | None = None
    exit_code: int | None = None
    stderr_tail: str | None = None
    warnings: list[str] | None = None
    """Of an upload: what its user should know."""
    links: UploadLinks | None = None
    """Of an upload by a ticket."""


class Progress(Wire):
    current: float
    total: float | None = None


class QueueInfo(Wire):
    """Why a job waits."""

    position: int
    """1 is next among the user's own jobs of the service."""
    reason: str
    """A sentence for people."""
    code: WaitReason | None = None
    """None: from an older server."""
    used: int | None = None
    """Of a quota: how many of ``limit`` are in use."""
    limit: int | None = None
    until: AwareDatetime | None = None
    """``not_before``: when it may be sent."""
    expected_at: AwareDatetime | None = None
    """About when it starts, by how long jobs of the service ran lately; None: not known."""
    waits_for: list[int] = Field(default_factory=list)
    """``dependency``: the jobs that have not completed yet, the first hundred."""


class HistoryEntry(Wire):
    """A state that a job had, or has."""

    status: JobState
    at: AwareDatetime
    seconds: float
    """How long it was in it; up to now for the last one."""
    attempt: int
    agent: str | None = None
    reason: Reason | None = None
    """Why it came to this state, as when a try failed; null: nothing went wrong."""
    message: str | None = None
    """Where there is a reason."""


class ChildCounts(Wire):
    """The children of a batch, by what became of them."""

    total: int
    queued: int = 0
    """Those that wait, or have not been made yet."""
    active: int = 0
    """Those that an agent has, or is about to get."""
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class RetryDoc(Wire):
    """How often, when and for what a job is tried again."""

    retries: int
    retry_delays_s: list[float] = Field(default_factory=list)
    """Seconds before each retry; the last one repeats. Empty: ``backoff`` says."""
    backoff: Literal["constant", "linear", "exponential", "exponential_jitter"] | None = None
    retry_delay_s: float | None = None
    max_retry_delay_s: float | None = None
    retry_on: list[str] = Field(default_factory=list)
    no_retry_on: list[str] = Field(default_factory=list)


class Links(Wire):
    self: str
    events: str
    logs: str | None = None
    result: str | None = None
    bundle: str | None = None
    """What was uploaded."""
    partial: str | None = None
    files: str | None = None
    parent: str | None = None
    children: str | None = None


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
    timeout_s: float | None = None
    limits: Limits
    enforcement: dict[str, str] = Field(default_factory=dict)
    usage: Usage | None = None
    claimed_at: AwareDatetime
    submitted_at: AwareDatetime | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    result_size: int | None = None
    """Bytes of the ZIP."""
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    """What its logs hold."""
    progress: Progress | None = None
    output: dict[str, Any] = Field(default_factory=dict)
    links: AttemptLinks


ResultFiles: TypeAlias = Literal["all", "changed"]


WebhookEvent: TypeAlias = Literal["job.completed", "job.failed", "job.cancelled"]
DeliveryState: TypeAlias = Literal["pending", "delivered", "failed"]


class DeliveryTry(Wire):
    """One request to the address of a webhook."""

    number: int
    at: AwareDatetime
    seconds: float
    status: int | None = None
    """Of the answer; None: there was none."""
    problem: str | None = None
    """Why it was not delivered."""


class DeliveryDoc(Wire):
    """A webhook that is or was to be delivered."""

    event: WebhookEvent
    state: DeliveryState
    message: str = ""
    """How the last try went."""
    tries: int = 0
    next_at: AwareDatetime | None = None
    """When it is tried (again)."""
    created_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    tried: list[DeliveryTry] = Field(default_factory=list)
    """The latest tries, the first one first."""


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
    output: dict[str, Any] = Field(default_factory=dict)
    agent: str | None = None
    timeout_s: float | None = None
    """Wall time of an attempt; null: no limit."""
    limits: Limits | None = None
    """What an attempt may use: the service's, or less where the upload asked for less."""
    enforcement: dict[str, str] = Field(default_factory=dict)
    parent_id: int | None = None
    queue: QueueInfo | None = None
    created_at: AwareDatetime
    submitted_at: AwareDatetime | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    heartbeat_at: AwareDatetime | None = None
    not_before: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None
    cancel_requested_at: AwareDatetime | None = None
    usage: Usage | None = None
    run: int = 1
    """Which run of its life; one more each time that it is retried by hand."""
    dead_letter: bool = False
    """It failed for good and is kept until somebody retries or deletes it."""
    meta: dict[str, Any] | None = None
    """What its user stored with it."""
    retry: RetryDoc | None = None
    outputs: list[str] = Field(default_factory=list)
    """Patterns of the files that its result is to have; none: all."""
    result_files: ResultFiles = "all"
    """``changed``: without files of the bundle and inputs that are as they were."""
    queue_timeout_s: float | None = None
    """Longest wait for a start, the service's applied; null: none. So are the next two."""
    heartbeat_timeout_s: float | None = None
    expires_after_s: float | None = None
    child_name: str | None = None
    """What it is called among the children of ``parent_id``."""
    array_index: int | None = None
    children: ChildCounts | None = None
    """Of a parent: its children."""
    after: list[int] = Field(default_factory=list)
    """Jobs that have to complete before it starts."""
    inputs_from: list[int] = Field(default_factory=list)
    """Jobs whose result files it gets."""
    schedule_id: int | None = None
    callback_url: str | None = None
    """Where its end is announced, by a webhook."""
    history: list[HistoryEntry] | None = None
    """In the document of a single job."""
    attempts: list[AttemptDoc] | None = None
    """In the document of a single job."""
    webhooks: list[DeliveryDoc] | None = None
    """Of ``callback_url``, in the document of a single job."""
    links: Links


class JobPage(Wire):
    items: list[JobDoc]
    next: str | None
    """Cursor of the next page; None on the last."""


class ScheduleDoc(Wire):
    """A schedule: an upload that becomes a job again and again."""

    id: int
    name: str
    user_id: str
    service: str
    cron: str
    """Minute, hour, day of the month, month, day of the week."""
    time_zone: str
    fields: dict[str, str]
    """The fields of the upload, which each of its jobs gets."""
    bundle_size: int
    """Bytes of the stored ZIP."""
    next_at: AwareDatetime
    """When it is due next."""
    last_at: AwareDatetime | None
    """When it made a job last."""
    last_job_id: int | None
    message: str
    """Why the latest time made no job; empty: it did."""
    created_at: AwareDatetime


class SchedulePage(Wire):
    items: list[ScheduleDoc]
    next: str | None
    """Cursor of the next page; None on the last."""


class FileDoc(Wire):
    """A file that an attempt left, or that is there while it runs."""

    path: str
    """As in the ZIP, with ``/`` between folders."""
    size: int
    """Bytes."""
    type: str
    """Media type, guessed from its name: ``text/plain``, ``application/octet-stream``."""
    modified_at: AwareDatetime | None = None
    """To two seconds; None: not known."""
    input: bool = False
    """It is a file of the bundle, as it was sent."""


class FilePage(Wire):
    """``GET /api/v1/jobs/{id}/files``."""

    attempt: int
    """Whose files they are."""
    running: bool
    """It has not ended: files come, grow and go."""
    items: list[FileDoc]
    next: str | None
    """Cursor of the next page; None on the last."""


class BulkItem(Wire):
    """What became of one job."""

    id: int
    ok: bool
    code: str
    """``requested``, ``queued``, ``deleted``, ``tagged``, ``moved``, ``cancelled``,
    ``already_ended``; or why not."""
    message: str


class BulkAnswer(Wire):
    """``POST /api/v1/jobs/bulk``."""

    items: list[BulkItem]
    more: bool
    """There may be further jobs that fit: ask again with ``next`` as ``cursor``."""
    next: str | None = None
