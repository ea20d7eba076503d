"""The moves that end an attempt: to an ended state, or back into the queue."""

from __future__ import annotations

from typing import Any, Final

from server.domain import retry
from server.domain.jobs import Job, Move
from server.domain.retry import Retry
from server.domain.service import Service
from shared.clock import SECOND, Micros
from shared.wire import JobState, Reason

AGAIN: Final = "; it will be tried again"


def interrupted(
    job: Job, service: Service, now: Micros, /, reason: Reason, message: str, **how: Any
) -> Move:
    """The attempt died through no fault of the bundle: again from its own budget, or Failed."""
    again = retry.after_interruption(job, service)
    if again is None and job.cancel_requested_at is None:
        return end(job, JobState.FAILED, service, now, message, reason, **how)
    again = again or Retry(0.0, job.infra_used, job.retries_used)
    return requeue(job, service, now, f"{message}{AGAIN}", reason, again, **how)


def failed(job: Job, service: Service, now: Micros, reason: Reason, message: str) -> Move:
    """Nothing can be tried any more."""
    return end(job, JobState.FAILED, service, now, message, reason)


def cancelled(job: Job, service: Service, now: Micros, message: str) -> Move:
    """Its user does not want it, and none of its processes is alive."""
    return end(job, JobState.CANCELLED, service, now, message)


def expired(job: Job, now: Micros) -> Move:
    """It has been kept for as long as its service says."""
    message = f"expired; it had ended as {job.state}"
    return move(job, JobState.CLEANED, now, message, job.reason, changes={"expires_at": None})


def end(
    job: Job,
    to: JobState,
    service: Service,
    now: Micros,
    message: str,
    reason: Reason | None = None,
    *,
    changes: dict[str, Any] | None = None,
    **how: Any,
) -> Move:
    """To an ended state; what it left expires from now on."""
    expires = now + round(service.expires_after_s * SECOND)
    ended = (changes or {}) | {"ended_at": now, "expires_at": expires}
    return move(job, to, now, message, reason, changes=ended, **how)


def requeue(
    job: Job,
    service: Service,
    now: Micros,
    message: str,
    reason: Reason | None,
    again: Retry,
    *,
    changes: dict[str, Any] | None = None,
    **how: Any,
) -> Move:
    """Back into the queue; a job that is to be cancelled is Cancelled instead."""
    if job.cancel_requested_at is not None:
        message = f"cancelled; {message.removesuffix(AGAIN)}"
        return end(job, JobState.CANCELLED, service, now, message, changes=changes, **how)
    delay = round(again.delay_s * SECOND)
    back: dict[str, Any] = {
        "queued_at": now,
        "not_before": now + delay if delay else 0,
        "infra_used": again.infra_used,
        "retries_used": again.retries_used,
        "agent": None,
        "payload_id": None,
        "submitted_at": None,
        "started_at": None,
        "heartbeat_at": None,
        "progress": None,
        "output": {},
    }
    return move(job, JobState.QUEUED, now, message, reason, changes=back, **how)


def move(
    job: Job,
    to: JobState,
    at: Micros,
    message: str,
    reason: Reason | None = None,
    **how: Any,
) -> Move:
    """A move of the job as it was seen."""
    return Move(job.id, job.attempt, job.state, to, at, message, reason, **how)
