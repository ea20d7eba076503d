"""A payload: what is stored of it, and how it is read from its row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from shared.clock import Micros, iso
from shared.ids import AttemptKey
from shared.sql import Row
from shared.wire import (
    ArrayTask,
    Limits,
    LiveDoc,
    OnShutdown,
    PackTask,
    PayloadDoc,
    PayloadState,
    Reason,
    ResultFiles,
    ResultInfo,
    RetryLater,
    Usage,
)

INSERT: Final = """
    INSERT INTO payloads (server, key, job_id, attempt, given, state, changed, created_at)
    VALUES (:server, :key, :job_id, :attempt, :given, :state, :changed, :now) RETURNING id
"""
"""Takes :meth:`NewPayload.params`, the state, the change number and the time."""


@dataclass(frozen=True, slots=True)
class NewPayload:
    """What is known of an attempt whose bundle is stored."""

    server: str | None
    """None: sent by a job-orchestrator server, which has no keys."""
    key: str | None
    service: str
    user_id: str
    timeout_s: float
    limits: Limits
    bundle_file: str
    bundle_size: int
    bundle_digest: str
    heartbeat_timeout_s: float = 0.0
    """0: none."""
    folder: str = ""
    """Of the bundle, ending in "/", that is the attempt's root; empty: the bundle's own."""
    entry: str = "run.sh"
    array: ArrayTask | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that the server's operator declared; they may be secret. Empty once
    it has ended."""
    inputs_file: str = ""
    """A ZIP of other jobs' files, stored like a bundle; empty: none."""
    on_shutdown: OnShutdown = "stop"
    outputs: tuple[str, ...] = ()
    """Patterns of the files that its result is to have; none: all."""
    result_files: ResultFiles = "all"
    pack: PackTask | None = None
    try_number: int = 0
    """For its script; 0: the attempt of its key."""
    meta: str = ""
    """JSON that its user stored with the job; empty: nothing."""

    def params(self) -> dict[str, Any]:
        """Parameters of :data:`INSERT`."""
        key = None if self.key is None else AttemptKey.parse(self.key)
        return {
            "server": self.server,
            "key": self.key,
            "job_id": key and key.job_id,
            "attempt": key and key.attempt,
            "given": _given().dump_json(self).decode(),
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, as it is stored."""

    state: PayloadState
    reason: Reason | None = None
    message: str = ""
    exit_code: int | None = None
    interrupted: bool = False
    stderr_tail: str = ""
    usage: Usage | None = None
    warnings: tuple[str, ...] = ()
    result: ResultInfo | None = None
    ended_at: Micros | None = None
    """None: when it is stored."""
    live: LiveDoc | None = None
    """What run.sh said; None: nothing."""
    retry_later: RetryLater | None = None
    """It is to be tried again later, as run.sh asked for."""

    def stored(self) -> str:
        """As :func:`from_row` reads it."""
        return _outcome().dump_json(self).decode()


@cache
def _given() -> TypeAdapter[NewPayload]:
    return TypeAdapter(NewPayload)


@cache
def _outcome() -> TypeAdapter[Outcome]:
    return TypeAdapter(Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload(NewPayload):
    """One row: an attempt, and the number of its latest change."""

    id: int
    state: PayloadState
    changed: int
    loc: str = ""
    pid: int = 0
    outcome: Outcome | None = None
    """None until it has ended."""
    created_at: Micros
    started_at: Micros | None = None
    ended_at: Micros | None = None
    enforcement: dict[str, str] = field(default_factory=dict)

    @property
    def job_id(self) -> int:
        """Of the server that sent it; the payload's own id where that server has no keys."""
        return self.id if self.key is None else AttemptKey.parse(self.key).job_id

    @property
    def attempt(self) -> int:
        return 1 if self.key is None else AttemptKey.parse(self.key).attempt

    def doc(self, live: LiveDoc | None = None) -> PayloadDoc:
        """As on the wire.

        Args:
            live: of one that runs.
        """
        outcome = self.outcome or Outcome(self.state)
        return PayloadDoc(
            id=self.id,
            status=self.state,
            loc=self.loc,
            pid=self.pid,
            killed=self.state is PayloadState.KILLED,
            server=self.server,
            key=self.key,
            bundle_digest=self.bundle_digest,
            reason=outcome.reason,
            message=outcome.message,
            exit_code=outcome.exit_code,
            interrupted=outcome.interrupted,
            stderr_tail=outcome.stderr_tail,
            usage=outcome.usage,
            result=outcome.result,
            created_at=iso(self.created_at),
            started_at=None if self.started_at is None else iso(self.started_at),
            ended_at=None if self.ended_at is None else iso(self.ended_at),
            warnings=list(outcome.warnings),
            enforcement=self.enforcement,
            live=outcome.live or live,
            retry_later=outcome.retry_later,
        )


def added(new: NewPayload, **own: Any) -> Payload:
    """What :func:`from_row` says of a payload that was stored with these values.

    Args:
        own: fields of a payload that are none of a new one.
    """
    return Payload(**{one.name: getattr(new, one.name) for one in fields(NewPayload)}, **own)


_AS_STORED: Final = ("id", "changed", "loc", "pid", "created_at", "started_at", "ended_at")


def from_row(row: Row) -> Payload:
    """Read a row of ``payloads``."""
    state, outcome = PayloadState(row["state"]), None
    if row["ended_at"] is not None:
        outcome = replace(_outcome().validate_json(row["outcome"]), state=state)
    return added(
        _given().validate_json(row["given"]),
        **{name: row[name] for name in _AS_STORED},
        state=state,
        outcome=outcome,
        enforcement=json.loads(row["enforcement"]),
    )


FIRST: Final = PayloadState.PREPARED

NEXT: Final[dict[PayloadState, frozenset[PayloadState]]] = {
    PayloadState.PREPARED: frozenset(
        {PayloadState.RUNNING, PayloadState.INVALID, PayloadState.FAILED, PayloadState.KILLED}
    ),
    PayloadState.RUNNING: frozenset(
        {PayloadState.COMPLETED, PayloadState.FAILED, PayloadState.KILLED}
    ),
    PayloadState.COMPLETED: frozenset({PayloadState.CLEANED}),
    PayloadState.FAILED: frozenset({PayloadState.CLEANED}),
    PayloadState.INVALID: frozenset({PayloadState.CLEANED}),
    PayloadState.KILLED: frozenset({PayloadState.CLEANED}),
    PayloadState.CLEANED: frozenset(),
}

ENDED: Final = frozenset(s for s, after in NEXT.items() if after <= {PayloadState.CLEANED})
LIVE: Final = frozenset(PayloadState) - ENDED
