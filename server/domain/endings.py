"""What follows when an attempt is over: the job ends, or it is queued again."""

from __future__ import annotations

from typing import Any

from server.domain import retry
from server.domain.jobs import Job, Move
from server.domain.retry import Retry
from server.domain.service import Service
from shared.clock import SECOND, Micros
from shared.wire import JobState, Reason

S = JobState


def end(
    job: Job,
    to: JobState,
    service: Service,
    at: Micros,
    message: str,
    reason: Reason | None = None,
    *,
    before: JobState | None = None,
    **changes: Any,
) -> Move:
    """The move into an ended state.

    Args:
        before: the state that the job is in by then, if earlier moves of the same write change it.
        changes: further fields of the job to set.
    """
    expires = at + round(service.expires_after_s * SECOND)
    return Move(
        job.id,
        job.attempt,
        before or job.state,
        to,
        at,
        message,
        reason,
        {"ended_at": at, "expires_at": expires, **changes},
    )


def again(
    job: Job,
    service: Service,
    at: Micros,
    message: str,
    reason: Reason | None,
    how: Retry,
    *,
    before: JobState | None = None,
) -> Move:
    """The move back into the queue; a job that is to be cancelled is Cancelled instead."""
    if job.cancel_requested_at is not None:
        return end(job, S.CANCELLED, service, at, f"cancelled; {message}", before=before)
    return Move(
        job.id,
        job.attempt,
        before or job.state,
        S.QUEUED,
        at,
        message,
        reason,
        {
            "queued_at": at,
            "not_before": at + round(how.delay_s * SECOND) if how.delay_s else 0,
            "infra_used": how.infra_used,
            "retries_used": how.retries_used,
            "agent": None,
            "payload_id": None,
            "submitted_at": None,
            "started_at": None,
        },
    )


def interrupted(
    job: Job,
    service: Service,
    at: Micros,
    message: str,
    reason: Reason,
    *,
    before: JobState | None = None,
    **changes: Any,
) -> Move:
    """The attempt died through no fault of the bundle: again from its own budget, or Failed."""
    how = retry.after_interruption(job, service)
    if how is None and job.cancel_requested_at is None:
        return end(job, S.FAILED, service, at, message, reason, before=before, **changes)
    return again(
        job,
        service,
        at,
        f"{message}; it will be tried again",
        reason,
        how or Retry(0.0, job.infra_used, job.retries_used),
        before=before,
    )
