"""A job, and how it moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from server.domain import states
from server.domain.agents import id_by_name
from server.domain.errors import IllegalTransition
from server.domain.live import Live
from server.domain.permits import Ticket
from server.domain.retry import RetryPolicy
from shared.clock import SECOND, Micros, utc
from shared.ids import AttemptKey
from shared.wire import (
    OWN_EVENT,
    HistoryEntry,
    JobState,
    Level,
    Limits,
    Progress,
    Reason,
    ResultFiles,
    Usage,
)


class FileKind(StrEnum):
    """What a stored file is; its value is the name of the folder for files of its kind."""

    BUNDLE = "bundles"
    RESULT = "results"


ROW_BYTES: Final = 32 << 10
"""Contents up to this size are rows of the database, larger ones are files."""
FIRST_EVENT: Final = f"job.{states.FIRST.lower()}"


class Hold(StrEnum):
    """Why a queued job may not be claimed yet."""

    DEPENDENCY = "dependency"
    """A job that has to complete before it has not."""
    PARALLEL = "parallel"
    """As many children of its parent are under way as may be."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A stored bundle."""

    file: str
    """Name in the storage."""
    size: int
    """Bytes of the ZIP."""
    digest: str
    """Of the content, see ``shared.files.bundles.format``."""
    own_modes: bool = field(default=False, compare=False)
    """Of a new one: no other upload may share its file."""
    content: bytes | None = field(default=None, compare=False, repr=False)
    """Of a new one that is small: written in the transaction that refers to it."""


@dataclass(frozen=True, slots=True)
class Result:
    """A stored result."""

    file: str
    size: int
    sha256: str
    """Of the ZIP."""
    inputs: int = 0
    """How many of the bundle's files its list names, which belong to it, too; 0: it is whole."""
    content: bytes | None = field(default=None, compare=False, repr=False)
    """As a bundle's."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The children that an upload asks for: an array, or what the job may leave."""

    ranges: tuple[tuple[int, int, int], ...] = ()
    """First, last and step of the indices, ascending and without repeats; empty: no array."""
    array_file: str | None = None
    """A file of the bundle with a line for each index."""
    max_parallel: int = 0
    """Most of its children under way at once; 0: as many as the quotas allow."""
    fail_fast: bool = False
    """The first child that fails ends the batch; else all are waited for."""
    has_gather: bool = False
    """The bundle has a gather.sh, which runs when all children have completed."""

    @property
    def tasks(self) -> int:
        """How many the array has."""
        return sum((last - first) // step + 1 for first, last, step in self.ranges)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an upload says of its job for as long as that is there, beside whose it is, what it
    runs, and its limits.
    """

    name: str | None = None
    tags: tuple[str, ...] = ()
    upload_warnings: tuple[str, ...] = ()
    """What was noticed when it was uploaded, such as what it asked for and does not get."""
    retry: RetryPolicy | None = None
    """None: the service's, as it is when an attempt fails."""
    queue_timeout_s: float | None = None
    """None: the service's; 0: waits for ever. So are the next two."""
    heartbeat_timeout_s: float | None = None
    expires_after_s: float | None = None
    priority: int = 0
    meta: str | None = None
    """JSON."""
    after: tuple[int, ...] = ()
    """Jobs that have to complete before it starts."""
    inputs_from: tuple[int, ...] = ()
    """Jobs whose result files it gets, once they have completed."""
    callback_url: str | None = None
    """Where its end is announced."""
    outputs: tuple[str, ...] = ()
    """Patterns of the files that its result is to have; none: all."""
    result_files: ResultFiles = "all"


@dataclass(frozen=True, slots=True)
class NewJob(Wanted):
    """A job that is to be inserted."""

    user_id: str
    service: str
    bundle: Bundle
    limits: Limits
    timeout_s: float
    created_at: Micros
    submitted_by: str | None = None
    """Name of the principal who uploaded it."""
    not_before: Micros = 0
    """0: now."""
    schedule_id: int | None = None
    idempotency_key: str | None = None
    ticket: Ticket | None = None
    """That it was uploaded by, good until it may be forgotten that it was used."""
    batch: BatchRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What is known of an attempt; a job shows it of its latest one."""

    state: JobState
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
    progress: Progress | None = None
    output: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Wanted, Execution):
    """A row of the store."""

    id: int
    user_id: str
    service: str
    limits: Limits
    timeout_s: float
    created_at: Micros
    queued_at: Micros
    """When it was queued last."""
    waits_since: Micros | None = None
    """From when its queue timeout counts; None: from ``queued_at``."""
    bundle: Bundle | None
    """None once Cleaned."""
    attempt: int = 0
    retries_used: int = 0
    infra_used: int = 0
    agent: str | None = None
    not_before: Micros = 0
    """Queued: when it may be sent; 0: now."""
    expires_at: Micros | None = None
    cancel_requested_at: Micros | None = None
    submitted_by: str | None = None
    """Name of the principal who uploaded it."""
    run: int = 1
    """One more each time that it is retried by hand."""
    later_used: int = 0
    """How often this run has asked to be tried later."""
    heartbeat_at: Micros | None = None
    """The latest sign of life of the current attempt."""
    dead_letter: bool = False
    delete_requested_at: Micros | None = None
    """It is deleted as soon as it has ended."""
    hold: Hold | None = None
    """Queued: why it may not be claimed, apart from ``not_before``."""
    parent_id: int | None = None
    child_name: str | None = None
    array_index: int | None = None
    array_line: str | None = None
    """Of the array's file, if it has one."""
    bundle_folder: str = ""
    """Folder of the bundle that is the job's root, ending in "/"; empty: the bundle's own root."""
    deferred: bool = False
    """A parent that waits for its children, or for its turn to have them made. It holds no slot and
    is not sent; it stays so when it ends, so that a retry goes on with the children."""
    gather: bool = False
    """Attempts of a parent run gather.sh from now on: its children have completed."""
    schedule_id: int | None = None
    earlier_starts: int = 0
    """Attempts before the current one whose script started; known where it was just claimed."""

    @property
    def key(self) -> AttemptKey:
        """Names the current attempt towards agents."""
        return AttemptKey(self.id, self.attempt)

    @property
    def entry(self) -> str:
        """The script of the bundle that an attempt runs."""
        return "gather.sh" if self.gather else "run.sh"

    @property
    def ended(self) -> bool:
        return self.state in states.ENDED

    @property
    def needs_order(self) -> bool:
        """An agent has to be told more than its bundle."""
        is_child = self.array_index is not None or bool(self.bundle_folder)
        return is_child or self.gather or bool(self.inputs_from)


UNSET: Final[Mapping[str, Any]] = {
    one.name: {} if one.default is MISSING else one.default for one in fields(Job)
}
"""Field -> what a new job has there, unless something is said of it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of the table, which is one line of the history."""

    to: JobState
    at: Micros
    message: str
    reason: Reason | None = None
    event: str = ""
    """Its dotted name; empty: "job." and the state."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """For programs, beside the message."""


@dataclass(frozen=True, slots=True)
class Move:
    """One or more steps through the table, made together and only if the job is still as seen.
    Raises IllegalTransition: the table has no such step.
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
    event: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the last step, as :class:`Step` has them."""
    live: Live | None = None
    """What the attempt said that is ended; it becomes events as far as it was not reported yet."""
    seen: Job | None = field(default=None, repr=False)
    """The job as it was seen."""

    def __post_init__(self) -> None:
        state = self.before
        for step in self.steps:
            if step.to not in states.NEXT[state]:
                raise IllegalTransition(self.job_id, state, step.to)
            state = step.to

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them, the last one to ``to``."""
        last = Step(self.to, self.at, self.message, self.reason, self.event, self.fields)
        return (*self.through, last)

    @property
    def started_at(self) -> Micros | None:
        """When the attempt started that was seen, or was reported with the move.

        A job has its first start: that of a later attempt is at least when the agent took it.
        """
        started: Micros | None = self.facts.get("started_at")
        if started is not None or self.seen is None or self.seen.started_at is None:
            return started
        return max(self.seen.started_at, self.seen.submitted_at or 0)

    @property
    def run_s(self) -> float | None:
        """How long the attempt ran that the move ends; None: none was under way."""
        if self.seen is None or self.seen.deferred or self.started_at is None:
            return None
        usage: Usage | None = self.facts.get("usage")
        return round(usage.wall_s if usage else max(0, self.at - self.started_at) / SECOND, 3)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's history, written in the transaction of what it is about."""

    seq: int
    job_id: int
    at: Micros
    attempt: int
    before: JobState | None
    """None: it is no move, or the first one."""
    state: JobState
    """The job's, after it."""
    reason: Reason | None
    message: str
    event: str = ""
    """Dotted name."""
    level: Level = "info"
    agent: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_move(self) -> bool:
        """Whether it is about the job's state, as its first event is, too."""
        return self.before is not None or self.event == FIRST_EVENT

    @property
    def source(self) -> str | None:
        """``run.sh``, of an event that it named itself."""
        return "run.sh" if OWN_EVENT.fullmatch(self.event) else None


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


def history(moves: Sequence[Event], now: Micros) -> list[HistoryEntry]:
    """The states that a job had, each with the time for which it was in it. ``moves``: events of
    its moves, oldest first. Returns an entry for each; the last one lasts until now. A clock that
    was set back makes no time negative.
    """
    ends = [*(move.at for move in moves[1:]), now]
    return [
        HistoryEntry(
            status=move.state,
            at=utc(move.at),
            seconds=max(0, end - move.at) / SECOND,
            attempt=move.attempt,
            agent=move.agent,
            reason=move.reason,
            message=move.message if move.reason else None,
        )
        for move, end in zip(moves, ends, strict=bool(moves))
    ]
