"""Rows to domain objects and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from server.domain import states
from server.domain.attempts import Attempt
from server.domain.jobs import Bundle, Event, Job, NewJob, Result
from shared.sql import Row
from shared.wire import JobState, Limits, Reason, Usage

# Few texts recur in most rows: each is parsed once.


@lru_cache(maxsize=256)
def _limits(text: str) -> Limits:
    return Limits.model_validate_json(text)


@lru_cache(maxsize=256)
def _words(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


@lru_cache(maxsize=256)
def _enforcement(text: str) -> Mapping[str, str]:
    return MappingProxyType(json.loads(text))


def job(row: Row) -> Job:
    return Job(
        id=row["id"],
        state=JobState(row["state"]),
        user_id=row["user_id"],
        service=row["service"],
        name=row["name"],
        tags=_words(row["tags"]),
        priority=row["priority"],
        limits=_limits(row["limits"]),
        timeout_s=row["timeout_s"],
        attempt=row["attempt"],
        retries_used=row["retries_used"],
        infra_used=row["infra_used"],
        message=row["message"],
        reason=Reason(row["reason"]) if row["reason"] else None,
        exit_code=row["exit_code"],
        stderr_tail=row["stderr_tail"],
        upload_warnings=_words(row["upload_warnings"]),
        warnings=_words(row["warnings"]),
        enforcement=_enforcement(row["enforcement"]),
        usage=Usage.model_validate_json(row["usage"]) if row["usage"] else None,
        agent=row["agent"],
        payload_id=row["payload_id"],
        bundle=Bundle(row["bundle_file"], row["bundle_size"], row["bundle_digest"])
        if row["bundle_file"]
        else None,
        result=_result(row),
        created_at=row["created_at"],
        queued_at=row["queued_at"],
        submitted_at=row["submitted_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        not_before=row["not_before"],
        expires_at=row["expires_at"],
        cancel_requested_at=row["cancel_requested_at"],
        submitted_by=row["submitted_by"],
    )


def attempt(row: Row) -> Attempt:
    return Attempt(
        job_id=row["job_id"],
        number=row["number"],
        state=JobState(row["state"]),
        agent=row["agent"],
        agent_id=row["agent_id"],
        payload_id=row["payload_id"],
        lease=row["lease"],
        limits=_limits(row["limits"]),
        timeout_s=row["timeout_s"],
        claimed_at=row["claimed_at"],
        submitted_at=row["submitted_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        message=row["message"],
        reason=Reason(row["reason"]) if row["reason"] else None,
        exit_code=row["exit_code"],
        stderr_tail=row["stderr_tail"],
        warnings=_words(row["warnings"]),
        enforcement=_enforcement(row["enforcement"]),
        usage=Usage.model_validate_json(row["usage"]) if row["usage"] else None,
        result=_result(row),
        stdout_bytes=row["stdout_bytes"],
        stderr_bytes=row["stderr_bytes"],
    )


def _result(row: Row) -> Result | None:
    if not row["result_file"]:
        return None
    return Result(row["result_file"], row["result_size"], row["result_sha256"])


def new_job_columns(new: NewJob) -> dict[str, Any]:
    """The columns that a new job brings."""
    return {
        "state": states.FIRST,
        "user_id": new.user_id,
        "service": new.service,
        "name": new.name,
        "tags": json.dumps(new.tags),
        "limits": new.limits.model_dump_json(),
        "timeout_s": new.timeout_s,
        "bundle_file": new.bundle.file,
        "bundle_size": new.bundle.size,
        "bundle_digest": new.bundle.digest,
        "created_at": new.created_at,
        "upload_warnings": json.dumps(new.warnings),
        "submitted_by": new.submitted_by,
    }


def event(row: Row) -> Event:
    return Event(
        seq=row["seq"],
        job_id=row["job_id"],
        at=row["at"],
        attempt=row["attempt"],
        before=JobState(row["before"]) if row["before"] else None,
        state=JobState(row["state"]),
        reason=Reason(row["reason"]) if row["reason"] else None,
        message=row["message"],
    )


def columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job as the columns that hold them."""
    values: dict[str, Any] = {}
    for name, value in changes.items():
        match name, value:
            case "result", None:
                values["result_file"] = None
            case "result", Result():
                values.update(
                    result_file=value.file,
                    result_size=value.size,
                    result_sha256=value.sha256,
                )
            case "usage", Usage():
                values["usage"] = value.model_dump_json()
            case (("warnings" | "tags"), _):
                values[name] = json.dumps(list(value))
            case "enforcement", _:
                values[name] = json.dumps(dict(value))
            case _:
                values[name] = value
    return values
