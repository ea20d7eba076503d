"""Retrying by hand: a new run of a job that has ended, with fresh retries."""

from __future__ import annotations

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
    if JobState.QUEUED not in states.NEXT[job.state] or not job.ended:
        why = "it has completed" if job.ended else f"it has not ended: it is {job.state}"
        raise RetryRefused(job.id, "not_retryable", why)
    if job.delete_requested_at is not None:
        raise RetryRefused(job.id, "being_deleted", "it is being deleted")
    if service is None:
        why = f"the server has no service {job.service} in its settings"
        raise RetryRefused(job.id, "unknown_service", why)
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
    return ending.move(
        job,
        JobState.QUEUED,
        now,
        f"retried by {by}",
        changes=again,
        event="job.retried",
        fields={"by": by, "run": job.run + 1},
    )
