"""Jobs as they are shown."""

from __future__ import annotations

from collections import Counter

from server.domain.jobs import Event, Job
from server.domain.service import Service
from server.ports import Fleet, Jobs
from shared.clock import Micros, iso
from shared.units.sizes import say_count
from shared.wire import EventDoc, JobDoc, JobState, Links, QueueInfo, StatusBody

S = JobState


def job(
    found: Job, service: Service | None, queue: QueueInfo | None = None, prefix: str = ""
) -> JobDoc:
    """The job document.

    Args:
        prefix: path below which a proxy shows the server.
    """
    here = f"{prefix}/api/v1/jobs/{found.id}"
    return JobDoc(
        id=found.id,
        status=found.state,
        message=found.message,
        user_id=found.user_id,
        service=found.service,
        name=found.name,
        tags=list(found.tags),
        priority=found.priority,
        attempt=found.attempt,
        retries_left=max(0, (service.retries if service else 0) - found.retries_used),
        ended=found.ended,
        reason=found.reason,
        exit_code=found.exit_code,
        stderr_tail=found.stderr_tail,
        warnings=[*found.upload_warnings, *found.warnings],
        agent=found.agent,
        timeout_s=found.timeout_s,
        limits=found.limits,
        enforcement=dict(found.enforcement),
        queue=queue,
        created_at=iso(found.created_at),
        submitted_at=_iso(found.submitted_at),
        started_at=_iso(found.started_at),
        ended_at=_iso(found.ended_at),
        not_before=_iso(found.not_before or None) if found.state is S.QUEUED else None,
        expires_at=_iso(found.expires_at),
        cancel_requested_at=_iso(found.cancel_requested_at),
        usage=found.usage,
        links=Links(
            self=here,
            events=f"{here}/events",
            result=f"{here}/result" if found.state is S.COMPLETED else None,
            partial=f"{prefix}/download_partial/{found.id}"
            if found.state is not S.CLEANED
            else None,
        ),
    )


def _iso(at: Micros | None) -> str | None:
    return None if at is None else iso(at)


async def why_waiting(
    found: Job, service: Service | None, jobs: Jobs, fleet: Fleet, now: Micros
) -> QueueInfo | None:
    """Place and reason of a job that waits; None for others."""
    if found.state is S.SUBMITTED:
        reason = f"agent {found.agent} has it and starts it when a slot is free"
        return QueueInfo(position=1, reason=reason)
    if found.state is not S.QUEUED:
        return None
    position = 1 + await jobs.queued_before(found)
    if service is None:
        reason = f"the server has no service {found.service} in its settings (any more)"
        return QueueInfo(position=position, reason=reason)
    held = await jobs.held()
    load = Counter[str]()
    for one in held:
        load[one.agent] += one.slots
    mine = sum(
        one.slots for one in held if (one.service, one.user_id) == (found.service, found.user_id)
    )
    all_users = sum(one.slots for one in held if one.service == found.service)
    if found.not_before > now:
        reason = f"to be tried again at {iso(found.not_before)}: {found.message}"
    elif fleet.choose(found.service, {}) is None:
        reason = fleet.why_none(found.service, {})
    elif mine >= service.runs_per_user:
        reason = (
            f"user {found.user_id} has {say_count(mine, 'job')} in work, "
            "the most the service allows one user"
        )
    elif all_users >= service.max_runs:
        reason = f"the service has {say_count(all_users, 'job')} in work, the most it may have"
    elif fleet.choose(found.service, load) is None:
        reason = fleet.why_none(found.service, load)
    elif position > 1:
        reason = "earlier jobs of the same user come first"
    else:
        reason = "next in turn"
    return QueueInfo(position=position, reason=reason)


def event(found: Event) -> EventDoc:
    return EventDoc(
        seq=found.seq,
        at=iso(found.at),
        attempt=found.attempt,
        before=found.before,
        status=found.state,
        reason=found.reason,
        message=found.message,
    )


def reference_state(state: JobState) -> str:
    """The state in job-orchestrator's words, which existing scripts compare."""
    return "Killed" if state is S.CANCELLED else str(state)


def status(found: Job, message: str | None = None) -> StatusBody:
    """The body of the reference routes."""
    return StatusBody(
        id=found.id,
        status=reference_state(found.state),
        message=message or found.message,
        reason=found.reason,
        exit_code=found.exit_code,
        stderr_tail=found.stderr_tail or None,
    )
