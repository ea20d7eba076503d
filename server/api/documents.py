"""Jobs and events as JSON documents."""

from __future__ import annotations

from collections import Counter

from server.domain.attempts import Attempt
from server.domain.jobs import Event, Job
from server.domain.service import Service
from server.ports import Fleet, Jobs
from shared.clock import Micros, iso
from shared.units.sizes import say_count
from shared.wire import (
    AttemptDoc,
    AttemptLinks,
    EventDoc,
    JobDoc,
    JobState,
    Links,
    QueueInfo,
    StatusBody,
)


def job_doc(
    job: Job, service: Service | None, queue: QueueInfo | None = None, prefix: str = ""
) -> JobDoc:
    """The job document.

    Args:
        prefix: path below which a proxy shows the server.
    """
    here = f"{prefix}/api/v1/jobs/{job.id}"
    return JobDoc(
        id=job.id,
        status=job.state,
        message=job.message,
        user_id=job.user_id,
        service=job.service,
        name=job.name,
        tags=list(job.tags),
        priority=job.priority,
        attempt=job.attempt,
        retries_left=max(0, (service.retries if service else 0) - job.retries_used),
        ended=job.ended,
        reason=job.reason,
        exit_code=job.exit_code,
        stderr_tail=job.stderr_tail,
        warnings=[*job.upload_warnings, *job.warnings],
        agent=job.agent,
        timeout_s=job.timeout_s,
        limits=job.limits,
        enforcement=dict(job.enforcement),
        queue=queue,
        created_at=iso(job.created_at),
        submitted_at=_iso(job.submitted_at),
        started_at=_iso(job.started_at),
        ended_at=_iso(job.ended_at),
        not_before=_iso(job.not_before or None) if job.state is JobState.QUEUED else None,
        expires_at=_iso(job.expires_at),
        cancel_requested_at=_iso(job.cancel_requested_at),
        usage=job.usage,
        links=Links(
            self=here,
            events=f"{here}/events",
            result=f"{here}/result" if job.state is JobState.COMPLETED else None,
            attempts=f"{here}/attempts",
            partial=f"{prefix}/download_partial/{job.id}"
            if job.state is not JobState.CLEANED
            else None,
        ),
    )


def attempt_doc(attempt: Attempt, prefix: str = "") -> AttemptDoc:
    """The attempt document."""
    here = f"{prefix}/api/v1/jobs/{attempt.job_id}/attempts/{attempt.number}"
    left = attempt.result is not None
    return AttemptDoc(
        number=attempt.number,
        status=attempt.state,
        message=attempt.message,
        reason=attempt.reason,
        exit_code=attempt.exit_code,
        stderr_tail=attempt.stderr_tail,
        warnings=list(attempt.warnings),
        agent=attempt.agent,
        agent_id=attempt.agent_id,
        timeout_s=attempt.timeout_s,
        limits=attempt.limits,
        enforcement=dict(attempt.enforcement),
        usage=attempt.usage,
        claimed_at=iso(attempt.claimed_at),
        submitted_at=_iso(attempt.submitted_at),
        started_at=_iso(attempt.started_at),
        ended_at=_iso(attempt.ended_at),
        result_size=attempt.result.size if attempt.result else None,
        stdout_bytes=attempt.stdout_bytes,
        stderr_bytes=attempt.stderr_bytes,
        links=AttemptLinks(
            result=f"{here}/result" if left else None,
            stdout=f"{here}/logs/stdout" if left else None,
            stderr=f"{here}/logs/stderr" if left else None,
        ),
    )


def _iso(at: Micros | None) -> str | None:
    return None if at is None else iso(at)


async def why_waiting(
    job: Job, service: Service | None, jobs: Jobs, fleet: Fleet, now: Micros
) -> QueueInfo | None:
    """Place and reason of a job that waits; None for others."""
    if job.state is JobState.SUBMITTED:
        reason = f"agent {job.agent} has it and starts it when a slot is free"
        return QueueInfo(position=1, reason=reason)
    if job.state is not JobState.QUEUED:
        return None
    position = 1 + await jobs.queued_before(job)
    if service is None:
        reason = f"the server has no service {job.service} in its settings"
        return QueueInfo(position=position, reason=reason)
    held = await jobs.held()
    load = Counter[str]()
    for one in held:
        load[one.agent] += one.slots
    mine = sum(
        one.slots for one in held if (one.service, one.user_id) == (job.service, job.user_id)
    )
    all_users = sum(one.slots for one in held if one.service == job.service)
    if job.not_before > now:
        reason = f"to be tried again at {iso(job.not_before)}: {job.message}"
    elif nobody := fleet.why_none(job.service, {}):
        reason = nobody
    elif mine >= service.runs_per_user:
        reason = (
            f"user {job.user_id} has {say_count(mine, 'job')} under way, "
            "the most the service allows one user"
        )
    elif all_users >= service.max_runs:
        reason = f"the service has {say_count(all_users, 'job')} under way, the most it may have"
    elif nobody := fleet.why_none(job.service, load):
        reason = nobody
    elif position > 1:
        reason = "earlier jobs of the same user come first"
    else:
        reason = "next in turn"
    return QueueInfo(position=position, reason=reason)


def event_doc(event: Event) -> EventDoc:
    return EventDoc(
        seq=event.seq,
        at=iso(event.at),
        attempt=event.attempt,
        before=event.before,
        status=event.state,
        reason=event.reason,
        message=event.message,
    )


def when_to_ask_again(job: Job) -> dict[str, str]:
    """The header for clients that poll."""
    return {} if job.ended else {"Retry-After": "2"}


def reference_state(state: JobState) -> str:
    """The state in job-orchestrator's words, which existing scripts compare."""
    return "Killed" if state is JobState.CANCELLED else str(state)


def status_body(job: Job, message: str | None = None) -> StatusBody:
    """The body of the reference routes."""
    return StatusBody(
        id=job.id,
        status=reference_state(job.state),
        message=message or job.message,
        reason=job.reason,
        exit_code=job.exit_code,
        stderr_tail=job.stderr_tail or None,
    )
