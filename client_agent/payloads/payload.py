"""A payload: what is stored of it, and how it is read from its row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

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
    INSERT INTO payloads (
        server, key, job_id, attempt, service, user_id, timeout_s, heartbeat_timeout_s, limits,
        bundle_file, bundle_size, bundle_digest, folder, entry, array_task, env, inputs_file,
        on_shutdown, outputs, result_files, pack, try_number, meta, state, changed, created_at
    ) VALUES (
        :server, :key, :job_id, :attempt, :service, :user_id, :timeout_s, :heartbeat_timeout_s,
        :limits, :bundle_file, :bundle_size, :bundle_digest, :folder, :entry, :array, :env,
        :inputs_file, :on_shutdown, :outputs, :result_files, :pack, :try_number, :meta, :state,
        :changed, :now
    ) RETURNING id
"""
"""Takes :meth:`NewPayload.params`, the state, the change number and the time."""


@dataclass(frozen=True, slots=True)
class NewPayload:
    """What is known of an attempt whose bundle is stored."""

    server: str | None
    """None: sent by a job-orchestrator server, which has no keys."""
    key: AttemptKey | None
    service: str
    user_id: str
    timeout_s: float
    limits: Limits
    bundle_file: str
    bundle_size: int
    bundle_digest: str
    lease: int = 0
    """Token of the lease under which it was sent."""
    heartbeat_timeout_s: float = 0.0
    """0: none."""
    folder: str = ""
    """Of the bundle, ending in "/", that is the attempt's root; empty: the bundle's own."""
    entry: str = "run.sh"
    array: ArrayTask | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that the server's operator declared; they may be secret."""
    inputs_file: str = ""
    """A ZIP of other jobs' files, stored like a bundle; empty: none."""
    on_shutdown: OnShutdown = "stop"
    outputs: Sequence[str] = ()
    """Patterns of the files that its result is to have; none: all."""
    result_files: ResultFiles = "all"
    pack: PackTask | None = None
    try_number: int = 0
    """For its script; 0: the attempt of its key."""
    meta: str = ""
    """JSON that its user stored with the job; empty: nothing."""

    def params(self) -> dict[str, Any]:
        """Parameters of :data:`INSERT`."""
        key = self.key
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "key": None if key is None else str(key),
            "job_id": None if key is None else key.job_id,
            "attempt": None if key is None else key.attempt,
            "limits": self.limits.model_dump_json(),
            "array": None if self.array is None else self.array.model_dump_json(),
            "env": json.dumps(dict(self.env)),
            "pack": None if self.pack is None else self.pack.model_dump_json(),
            "outputs": json.dumps(list(self.outputs)),
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

    def params(self) -> dict[str, Any]:
        """Parameters of the UPDATE."""
        result = self.result
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "usage": None if self.usage is None else self.usage.model_dump_json(),
            "warnings": json.dumps(self.warnings),
            "live": None if self.live is None else self.live.model_dump_json(),
            "retry_later": None if self.retry_later is None else self.retry_later.model_dump_json(),
            "size": None if result is None else result.size,
            "sha256": None if result is None else result.sha256,
            "stdout_bytes": None if result is None else result.stdout_bytes,
            "stderr_bytes": None if result is None else result.stderr_bytes,
            "children": 0 if result is None else result.children,
        }


@dataclass(frozen=True, slots=True)
class Payload:
    """One row: an attempt, and the number of its latest change."""

    id: int
    server: str | None
    key: str | None
    job_id: int
    """Of the server that sent it; the payload's own id where that server has no keys."""
    attempt: int
    service: str
    user_id: str
    timeout_s: float
    limits: Limits
    bundle_file: str
    bundle_size: int
    bundle_digest: str
    state: PayloadState
    changed: int
    acknowledged: bool
    loc: str
    pid: int
    outcome: Outcome | None
    """None until it has ended."""
    created_at: Micros
    started_at: Micros | None
    ended_at: Micros | None
    enforcement: dict[str, str] = field(default_factory=dict)
    heartbeat_timeout_s: float = 0.0
    folder: str = ""
    entry: str = "run.sh"
    array: ArrayTask | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Empty once it has ended."""
    inputs_file: str = ""
    on_shutdown: OnShutdown = "stop"
    outputs: Sequence[str] = ()
    result_files: ResultFiles = "all"
    pack: PackTask | None = None
    try_number: int = 0
    meta: str = ""

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


_AS_STORED: Final = (
    *("id", "server", "key", "service", "user_id", "timeout_s", "heartbeat_timeout_s"),
    *("bundle_file", "bundle_size", "bundle_digest", "changed", "loc", "pid"),
    *("created_at", "started_at", "ended_at"),
    *("folder", "entry", "inputs_file", "on_shutdown", "result_files", "try_number", "meta"),
)
"""Fields of a payload that are stored as they are."""


_AS_GIVEN: Final = tuple(
    {one.name for one in fields(NewPayload)} & {one.name for one in fields(Payload)} - {"key"}
)
"""Fields of a payload that are as they were given."""


def added(
    new: NewPayload, payload_id: int, state: PayloadState, changed: int, now: Micros
) -> Payload:
    """What :func:`from_row` says of a payload that was stored with these values."""
    key = new.key
    return Payload(
        **{name: getattr(new, name) for name in _AS_GIVEN},
        id=payload_id,
        key=None if key is None else str(key),
        job_id=payload_id if key is None else key.job_id,
        attempt=1 if key is None else key.attempt,
        state=state,
        changed=changed,
        acknowledged=False,
        loc="",
        pid=0,
        outcome=None,
        created_at=now,
        started_at=None,
        ended_at=None,
    )


def from_row(row: Row) -> Payload:
    """Read a row of ``payloads``."""
    state = PayloadState(row["state"])
    return Payload(
        **{name: row[name] for name in _AS_STORED},
        job_id=row["id"] if row["job_id"] is None else row["job_id"],
        attempt=1 if row["attempt"] is None else row["attempt"],
        limits=Limits.model_validate_json(row["limits"]),
        state=state,
        acknowledged=bool(row["acknowledged"]),
        outcome=None if row["ended_at"] is None else _outcome(state, row),
        enforcement=json.loads(row["enforcement"]),
        array=None
        if row["array_task"] is None
        else ArrayTask.model_validate_json(row["array_task"]),
        env=json.loads(row["env"]),
        pack=None if row["pack"] is None else PackTask.model_validate_json(row["pack"]),
        outputs=tuple(json.loads(row["outputs"])),
    )


def _outcome(state: PayloadState, row: Row) -> Outcome:
    return Outcome(
        state=state,
        reason=None if row["reason"] is None else Reason(row["reason"]),
        message=row["message"],
        exit_code=row["exit_code"],
        interrupted=bool(row["interrupted"]),
        stderr_tail=row["stderr_tail"],
        usage=None if row["usage"] is None else Usage.model_validate_json(row["usage"]),
        warnings=tuple(json.loads(row["warnings"])),
        result=None
        if row["result_sha256"] is None
        else ResultInfo(
            size=row["result_size"],
            sha256=row["result_sha256"],
            stdout_bytes=row["stdout_bytes"],
            stderr_bytes=row["stderr_bytes"],
            children=row["children"],
        ),
        live=None if row["live"] is None else LiveDoc.model_validate_json(row["live"]),
        retry_later=None
        if row["retry_later"] is None
        else RetryLater.model_validate_json(row["retry_later"]),
    )
