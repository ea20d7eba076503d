"""Models of the documents that server and agent exchange, exactly as they are on the wire.

Those that clients read, too, are defined in ``ferryman.models``, which says what is ignored and
what is refused: the client installs alone.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, FiniteFloat

from ferryman.models.events import EventDoc as EventDoc
from ferryman.models.events import EventPage as EventPage
from ferryman.models.events import Level as Level
from ferryman.models.events import LinkDoc as LinkDoc
from ferryman.models.events import LoginLinkDoc as LoginLinkDoc
from ferryman.models.events import TicketDoc as TicketDoc
from ferryman.models.events import WebhookBody as WebhookBody
from ferryman.models.events import WebhookJob as WebhookJob
from ferryman.models.events import WebhookSecret as WebhookSecret
from ferryman.models.jobs import AttemptDoc as AttemptDoc
from ferryman.models.jobs import AttemptLinks as AttemptLinks
from ferryman.models.jobs import BulkAnswer as BulkAnswer
from ferryman.models.jobs import BulkItem as BulkItem
from ferryman.models.jobs import ChildCounts as ChildCounts
from ferryman.models.jobs import DeliveryDoc as DeliveryDoc
from ferryman.models.jobs import DeliveryState as DeliveryState
from ferryman.models.jobs import DeliveryTry as DeliveryTry
from ferryman.models.jobs import FileDoc as FileDoc
from ferryman.models.jobs import FilePage as FilePage
from ferryman.models.jobs import HistoryEntry as HistoryEntry
from ferryman.models.jobs import JobDoc as JobDoc
from ferryman.models.jobs import JobPage as JobPage
from ferryman.models.jobs import Limits as Limits
from ferryman.models.jobs import Links as Links
from ferryman.models.jobs import Progress as Progress
from ferryman.models.jobs import QueueInfo as QueueInfo
from ferryman.models.jobs import ResultFiles as ResultFiles
from ferryman.models.jobs import RetryDoc as RetryDoc
from ferryman.models.jobs import ScheduleDoc as ScheduleDoc
from ferryman.models.jobs import SchedulePage as SchedulePage
from ferryman.models.jobs import StatusBody as StatusBody
from ferryman.models.jobs import UploadLinks as UploadLinks
from ferryman.models.jobs import Usage as Usage
from ferryman.models.jobs import WebhookEvent as WebhookEvent
from ferryman.models.jobs import Wire as Wire
from ferryman.models.operators import AgentDoc as AgentDoc
from ferryman.models.operators import AgentPage as AgentPage
from ferryman.models.operators import AgentState as AgentState
from ferryman.models.operators import AuditDoc as AuditDoc
from ferryman.models.operators import AuditPage as AuditPage
from ferryman.models.operators import ForgottenDoc as ForgottenDoc
from ferryman.models.operators import JobsLeft as JobsLeft
from ferryman.models.operators import NewTokenDoc as NewTokenDoc
from ferryman.models.operators import Quota as Quota
from ferryman.models.operators import Reloaded as Reloaded
from ferryman.models.operators import ScopeName as ScopeName
from ferryman.models.operators import ServiceDoc as ServiceDoc
from ferryman.models.operators import ServicePage as ServicePage
from ferryman.models.operators import SettingChange as SettingChange
from ferryman.models.operators import TokenDoc as TokenDoc
from ferryman.models.operators import TokenPage as TokenPage
from ferryman.models.operators import UsageDoc as UsageDoc
from ferryman.models.operators import WaitingJob as WaitingJob
from ferryman.models.operators import WhoAmI as WhoAmI
from ferryman.states import JobState as JobState
from ferryman.states import Reason as Reason
from ferryman.states import WaitReason as WaitReason

_MAX_ID: Final = 2**63 - 1


class PackTask(Wire):
    """The attempt may share the start of its sandbox with others of its batch, see ADR 32."""

    batch: int = Field(ge=0, le=_MAX_ID)
    """The job whose children they are."""
    most: int = Field(ge=1)
    """Attempts that may share one start."""


Int64: TypeAlias = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""An integer that a database column can hold."""
Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
"""Of bytes, or of other things."""
START: Final = "Ferryman-Start"
"""Header of each request to a Ferryman agent, see :class:`shared.ids.Start`."""
LOG_SIZE: Final = "Ferryman-Log-Size"
"""Header of an agent's answer with a log: how many bytes there are so far."""
OWN_EVENT: Final = re.compile(
    r"(?!(?:job|ferryman)\.)(?=.{3,64}$)[a-z0-9_-]+(?:\.[a-z0-9_-]+)+", re.ASCII | re.IGNORECASE
)
"""Names of events that run.sh may choose."""


class PayloadState(StrEnum):
    """States of a payload on an agent."""

    PREPARED = "Prepared"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    INVALID = "Invalid"
    KILLED = "Killed"
    CLEANED = "Cleaned"


OnShutdown: TypeAlias = Literal["stop", "resubmit", "continue"]
"""What a stopping agent does with an attempt that runs."""


MAX_LINE: Final = 64 << 10
"""Bytes of an array's line: it becomes a variable, of which Linux takes 128 KiB."""


class ArrayTask(Wire):
    """Which task of an array an attempt is."""

    index: int
    line: str | None = None
    """Of the array's file; None: it has none."""


class InputsInfo(Wire):
    """Files of other jobs that an attempt gets beside its bundle, as one ZIP behind it."""

    size: Count
    sha256: str


class Order(Wire):
    """What a Ferryman server sends to a Ferryman agent before the bundle."""

    server: str
    """Identity of the server's database: keys of two servers never collide on one agent."""
    key: str
    """``job.attempt``, see :class:`shared.ids.AttemptKey`."""
    service: str
    user_id: str
    timeout_s: float = Field(ge=0)
    """Wall time of the attempt; 0: no limit."""
    limits: Limits
    bundle_digest: str
    """SHA-256 of the content, hex, see :mod:`shared.files.bundles.format`."""
    bundle_size: int
    """Bytes of the sealed ZIP."""
    heartbeat_timeout_s: float = Field(0, ge=0)
    """Longest time without a sign of life (output, progress, heartbeat); 0: any."""
    on_shutdown: OnShutdown = "stop"
    folder: str = ""
    """Folder of the bundle, ending in "/", that is the attempt's root; empty: the bundle's own."""
    entry: str = "run.sh"
    """What is run, in the attempt's root."""
    array: ArrayTask | None = None
    env: dict[str, str] = Field(default_factory=dict)
    """Variables that the service's operator declared, secrets among them."""
    inputs: InputsInfo | None = None
    outputs: list[str] = Field(default_factory=list)  # see shared.files.globs
    result_files: ResultFiles = "all"
    pack: PackTask | None = None
    meta: str = ""
    """JSON that its user stored with it; empty: nothing."""
    keep_bundle: bool = False
    """More orders of this bundle may come: it is kept for a while."""
    try_number: Count = 0
    """``FERRYMAN_ATTEMPT``: 1 and the earlier attempts that started; 0: the attempt of the key."""


class RetryLater(Wire):
    """The bundle asked to be tried again later."""

    after_s: float | None = Field(None, ge=0)
    """None: the service says."""
    message: str = ""


class Notice(Wire):
    """A line for people that run.sh wrote: ``::notice::``, ``::warning::`` or ``::error::``; or an
    event of its own, ``::event::``."""

    level: Level
    text: str
    at: str
    event: str = ""
    """The name of its own event."""
    fields: dict[str, str] = Field(default_factory=dict)


class LiveDoc(Wire):
    """What run.sh has said so far. Kept by the agent until the attempt ends, then stored."""

    progress: Progress | None = None
    message: str = ""
    """Of the latest progress."""
    output: dict[str, str] = Field(default_factory=dict)
    json_outputs: list[str] = Field(default_factory=list)
    """Names of those that are JSON; older versions take them as text."""
    heartbeat_at: str | None = None
    """The latest sign of life, output included."""
    notices: list[Notice] = Field(default_factory=list)
    """All so far; those of an attempt are bounded."""
    stdout_bytes: Count = 0
    stderr_bytes: Count = 0
    """Written so far."""


class ResultInfo(Wire):
    """A result that can be fetched."""

    size: Count
    """Bytes of the ZIP."""
    sha256: str
    """Of the ZIP file, hex."""
    stdout_bytes: Count | None = None
    stderr_bytes: Count | None = None
    """What its logs hold; None from an agent that does not say it yet."""
    children: Count = 0
    """Folders ``children/NAME`` with a run.sh that it holds."""
    inputs: Count = 0
    """Lines of its list of the bundle's files that are there unchanged, and are not in it; 0: it
    is whole, and has no list."""


class PayloadDoc(Wire):
    """A payload as its agent reports it. The first six fields are what job-orchestrator reads."""

    id: Int64
    status: PayloadState
    loc: str = ""
    pid: int = 0
    killed: bool = False
    input: Annotated[dict[str, Any], BeforeValidator(lambda _: {})] = Field(default_factory=dict)
    """Always empty: a job-orchestrator client has the files of the bundle here, and a hostile agent
    what it likes. Nobody needs them."""

    server: str | None = None
    key: str | None = None
    bundle_digest: str | None = None
    """Of the bundle that it was submitted with; None from an older agent."""
    reason: Reason | None = None
    message: str = ""
    exit_code: Int64 | None = None
    interrupted: bool = False
    """It ended through no fault of the bundle (agent killed or stopped): it may be retried."""
    stderr_tail: str = ""
    usage: Usage | None = None
    result: ResultInfo | None = None
    """There once the attempt has ended, whatever its state, unless nothing could be collected."""
    created_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    warnings: list[str] = Field(default_factory=list)
    """Notes for the user that did not decide the outcome."""
    enforcement: dict[str, str] = Field(default_factory=dict)
    """limit -> "hard" or "soft" or "none", as enforced for this attempt."""
    live: LiveDoc | None = None
    """None: from an older agent, or it said nothing."""
    retry_later: RetryLater | None = None


class PayloadList(Wire):
    """``GET /payloads``: a page of everything not yet acknowledged, as of ``seq``."""

    seq: Int64
    payloads: list[PayloadDoc]
    next: Int64 | None = None
    """Where the next page begins (``after``); None: this is the last one."""


class AgentStatus(Wire):
    """How an agent is now, sent each second."""

    slots: Count
    running: Count
    """Attempts that have a slot, those of all servers."""
    load: FiniteFloat | None = None
    """CPU use of its host since the last one, in percent; None: not known yet."""
    draining: bool = False


class AgentEvent(Wire):
    """One line of ``GET /events``. Without a payload it is a heartbeat."""

    seq: Int64
    """Every change up to this number was sent."""
    payload: PayloadDoc | None = None
    status: AgentStatus | None = None
    """In heartbeats; older agents do not send it."""
    result_bytes: Count = 0
    """So many bytes follow behind the line: the payload's result. Only who asks for it gets it."""


class Settled(Wire):
    """Answer to ``POST /keys/{server}/{key}/settle``: the payload; None: there will be none."""

    payload: PayloadDoc | None


class AgentHealth(Wire):
    """``GET /health`` of a Ferryman agent. job-orchestrator's client has only ``status``."""

    status: str
    database: str = "ok"
    agent: str | None = None
    """Name of the agent; a job-orchestrator client has none."""
    agent_id: str | None = None
    """Its own id, which it keeps whatever its name or address; None: an older agent."""
    version: str | None = None
    slots: Count | None = None
    running: Count | None = None
    load: FiniteFloat | None = None
    """CPU use of its host, in percent."""
    services: list[str] | None = None
    """Services offered; None: any."""
    labels: dict[str, str] = Field(default_factory=dict)
    """What its operator says of it."""
    sandbox: dict[str, Any] | None = None
    """Backend, self-test, which limits are hard."""
    message: str = ""
    ready: bool = True
    """False: it takes no bundles now, and says why. A full disk is no error: what it has can be
    fetched."""
    draining: bool = False
    """It finishes what it has, takes nothing more, and then ends."""
    packs: bool = False
    """It runs attempts of an array one after the other in one sandbox start (``Order.pack``)."""


class Problem(Wire):
    """RFC 9457, ``application/problem+json``."""

    type: str = "about:blank"
    """Always about:blank: ``code`` says what it is."""
    title: str
    """What HTTP calls the status."""
    status: int
    """The answer's status."""
    detail: str
    """A sentence for people."""
    code: str
    """For programs."""
    part: str | None = None
    """The parameter, or the field or part of a form, that is wrong."""
    request_id: str | None = None
    """Names the request in the server's log."""


class ReferenceProblem(Wire):
    """A refusal on job-orchestrator's routes, in its shape."""

    id: int
    """The job it is about; 0: none."""
    status: str
    """The state of that job, or Unknown."""
    message: str
    """A sentence for people."""
    code: str
    """For programs."""
    part: str | None = None
    """The parameter, or the field or part of a form, that is wrong."""


FILE_SIZE: Final = "Ferryman-File-Size"
"""Header of an agent's answer with a file of an attempt that runs: its bytes now."""


class RunningFile(Wire):
    """A file of an attempt that runs."""

    path: str
    size: Count
    modified: FiniteFloat
    """Seconds since 1970."""


class RunningFiles(Wire):
    """``GET /payloads/{id}/files``."""

    files: list[RunningFile]
    more: bool
    """Others follow behind the last one."""


class OrderAnswer(Wire):
    """What became of one order: its payload, or what a submit of it would be refused with."""

    payload: PayloadDoc | None = None
    status: int = 200
    code: str = ""
    """``bundle_missing``: the bundle has to be sent."""
    message: str = ""
    retry_after_s: float | None = None


class PayloadRef(Wire):
    """A payload, by its number and key."""

    id: Int64
    key: str | None = None


class PayloadsRequest(Wire):
    """First line of ``POST /payloads``: attempts, and what need not be kept any more. Behind it the
    bundles, one after the other."""

    orders: list[Order]
    sizes: list[Count]
    """Of each order's bundle in this request, in bytes; 0: the agent has it. Its inputs follow."""
    server: str
    """Identity of the server that acknowledges."""
    acknowledge: list[PayloadRef] = Field(default_factory=list)


class PayloadsAnswer(Wire):
    """Answer to ``POST /payloads``."""

    answers: list[OrderAnswer]
    """In the order of the orders."""
    refused: dict[int, str] = Field(default_factory=dict)
    """Payload id -> code, of those that were acknowledged and not forgotten."""
