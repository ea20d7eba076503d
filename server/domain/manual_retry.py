"""Retrying by hand: a new run of a job that has ended, with fresh retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.domain import ending, states
from server.domain.errors import RetryRefused
from server.domain.jobs import Job, Move
from server.domain.service import Service
from shared.clock import Micros
from shared.wire import JobState


def retried(job: Job, service: Service | None, now: Micros, by: str) -> Move:
    """Queue it again. Its attempts, their numbers and its history go on.

    Args:
        service: its service; None: the server has it no more.
        by: who asked for it.

    Raises:
        RetryRefused
    """
    if job.state is JobState.CLEANED or (job.ended and job.bundle is None):
        why = "its bundle was removed when it expired: upload it again"
        raise RetryRefused(job.id, "bundle_gone", why)
    if job.state not in states.RETRIED_BY_HAND:
        why = "it has completed" if job.ended else f"it has not ended: it is {job.state}"
        raise RetryRefused(job.id, "not_retryable", why)
    _check_possible(job, service, job.service)
    how = {"event": "job.retried", "fields": {"by": by, "run": job.run + 1}}
    return _new_run(job, now, f"retried by {by}", how)


def requeued(job: Job, service: Service | None, name: str, now: Micros, by: str) -> Move:
    """Queue a job that has ended again, whatever its end was, for an operator.

    Args:
        service: that it is to be of, from now on; None: there is none.
        name: of that service.
        by: who asked for it.

    Raises:
        RetryRefused
    """
    if job.bundle is None:
        why = "its bundle was removed when it expired: upload it again"
        raise RetryRefused(job.id, "bundle_gone", why)
    if job.state is JobState.COMPLETED and job.deferred:
        why = "it is a batch that has completed: requeue its children, or upload it again"
        raise RetryRefused(job.id, "not_retryable", why)
    _check_possible(job, service, name)
    how = requeue_event(job, name, by)
    return _new_run(job, now, f"requeued by {by}", how, {"service": name})


def requeue_event(job: Job, service: str, by: str) -> dict[str, Any]:
    """The event of a requeue."""
    fields = {"by": by, "before": job.state}
    if service != job.service:
        fields |= {"service": service, "service_before": job.service}
    return {"event": "job.queued_again", "fields": fields}


def _check_possible(job: Job, service: Service | None, name: str) -> None:
    if job.delete_requested_at is not None:
        raise RetryRefused(job.id, "being_deleted", "it is being deleted")
    if service is None:
        why = f"the server has no service {name} in its settings"
        raise RetryRefused(job.id, "unknown_service", why)


def _new_run(
    job: Job,
    now: Micros,
    message: str,
    how: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> Move:
    again: dict[str, Any] = {
        "run": job.run + 1,
        "retries_used": 0,
        "infra_used": 0,
        "later_used": 0,
        "queued_at": now,
        "waits_since": None,
        "not_before": 0,
        "exit_code": None,
        "stderr_tail": "",
        "warnings": (),
        "enforcement": {},
        "usage": None,
        "result": None,
        "progress": None,
        "output": {},
        "heartbeat_at": None,
        "ended_at": None,
        "expires_at": None,
        "dead_letter": False,
        "cancel_requested_at": None,
        "agent": None,
        "payload_id": None,
        "submitted_at": None,
        "started_at": None,
    }
    return ending.move(job, JobState.QUEUED, now, message, changes=again | dict(more or {}), **how)
