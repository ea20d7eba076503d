"""Jobs and events as JSON documents."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from server.domain.agents import AgentRecord
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
    Wire,
)

_TIMES: Final = frozenset({"at", "not_before"})


def job_doc(
    job: Job, service: Service | None, queue: QueueInfo | None = None, prefix: str = ""
) -> JobDoc:
    """The job document.

    Args:
        prefix: path below which a proxy shows the server.
    """
    here = f"{prefix}/api/v1/jobs/{job.id}"
    cleaned = job.state is JobState.CLEANED
    own = {
        "status": job.state,
        "retries_left": max(0, (service.retries if service else 0) - job.retries_used),
        "warnings": [*job.upload_warnings, *job.warnings],
        "queue": queue,
        "links": Links(
            self=here,
            events=f"{here}/events",
            result=f"{here}/result" if job.state is JobState.COMPLETED else None,
            attempts=f"{here}/attempts",
            partial=None if cleaned else f"{prefix}/download_partial/{job.id}",
        ),
    }
    if job.state is not JobState.QUEUED or not job.not_before:
        own["not_before"] = None
    return JobDoc(**shown(job, JobDoc) | own)


def attempt_doc(attempt: Attempt, prefix: str = "") -> AttemptDoc:
    """The attempt document."""
    here = f"{prefix}/api/v1/jobs/{attempt.job_id}/attempts/{attempt.number}"
    own: dict[str, Any] = {"status": attempt.state, "links": AttemptLinks()}
    if attempt.result is not None:
        own["result_size"] = attempt.result.size
        own["links"] = AttemptLinks(
            result=f"{here}/result", stdout=f"{here}/logs/stdout", stderr=f"{here}/logs/stderr"
        )
    return AttemptDoc(**shown(attempt, AttemptDoc) | own)


def event_doc(event: Event) -> EventDoc:
    return EventDoc(status=event.state, **shown(event, EventDoc))


def shown(record: Job | Attempt | Event | AgentRecord, model: type[Wire]) -> dict[str, Any]:
    """What a document shows under the names that the record has for it; times as text."""
    names = [name for name in model.model_fields if hasattr(record, name)]
    return {name: _shown(name, getattr(record, name)) for name in names}


def _shown(name: str, value: Any) -> Any:
    is_time = value is not None and (name in _TIMES or name.endswith("_at"))
    return iso(value) if is_time else value


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
