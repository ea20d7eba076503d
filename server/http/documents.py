"""Jobs and events as JSON documents."""

from __future__ import annotations

import json
from typing import Any, Final

from server.domain import ending
from server.domain.batch import Batch
from server.domain.jobs import Attempt, Event, Job
from server.domain.retry import RetryPolicy
from server.domain.service import Service
from server.domain.webhooks import Delivery
from shared.clock import SECOND, Micros, utc
from shared.wire import (
    AttemptDoc,
    AttemptLinks,
    ChildCounts,
    DeliveryDoc,
    DeliveryTry,
    EventDoc,
    JobDoc,
    JobState,
    Links,
    Progress,
    QueueInfo,
    RetryDoc,
    StatusBody,
    Wire,
)

_RETRY_AFTER_S: Final = (2, 60)
_SHARE: Final = 0.05
"""Part of the time that it has taken so far."""
_TIMES: Final = frozenset({"at", "not_before"})
_TIMES_THAT_HOLD: Final = {
    "queue_timeout_s": ending.queue_timeout_s,
    "heartbeat_timeout_s": ending.heartbeat_timeout_s,
    "expires_after_s": ending.expires_after_s,
}
"""Of a job, its service's applied; 0: there is none."""


def job_doc(
    job: Job,
    service: Service | None,
    queue: QueueInfo | None = None,
    prefix: str = "",
    batch: ChildCounts | None = None,
) -> JobDoc:
    """The job document.

    Args:
        batch: its children; None: it has none.
        prefix: path below which a proxy shows the server.
    """
    here = f"{prefix}/api/v1/jobs/{job.id}"
    cleaned = job.state is JobState.CLEANED
    rules = job.retry or (service.retry if service else None)
    own: dict[str, Any] = {
        "status": job.state,
        "timeout_s": job.timeout_s or None,
        "retries_left": max(0, (rules.retries if rules else 0) - job.retries_used),
        "retry": None if rules is None else retry_doc(rules),
        "meta": None if job.meta is None else json.loads(job.meta),
        "warnings": [*job.upload_warnings, *job.warnings],
        "queue": queue,
        "links": Links(
            self=here,
            events=f"{here}/events",
            logs=None if cleaned or not job.attempt else f"{here}/logs",
            result=f"{here}/result" if job.state is JobState.COMPLETED else None,
            bundle=None if cleaned else f"{here}/bundle",
            files=None if cleaned or not job.attempt or job.deferred else f"{here}/files",
            partial=None if cleaned else f"{prefix}/download_partial/{job.id}",
            parent=None if job.parent_id is None else f"{prefix}/api/v1/jobs/{job.parent_id}",
        ),
    }
    if service is not None:  # what holds; without a service it shows what its upload said
        own |= {name: held(job, service) or None for name, held in _TIMES_THAT_HOLD.items()}
    if batch is not None:
        links = {"children": f"{prefix}/api/v1/jobs?parent={job.id}"}
        own |= {"children": batch, "links": own["links"].model_copy(update=links)}
    if job.state is not JobState.QUEUED or not job.not_before:
        own["not_before"] = None
    if batch is not None and job.deferred:
        ended = batch.completed + batch.failed + batch.cancelled
        own["progress"] = Progress(current=ended, total=batch.total)
    if job.state is JobState.COMPLETED:
        said = own.get("progress", job.progress) or Progress(current=1, total=1)
        own["progress"] = said.model_copy(update={"current": said.total or said.current})
    return JobDoc(**shown(job, JobDoc) | own)


def child_counts(batch: Batch, active: int) -> ChildCounts:
    """What became of the children of a batch.

    Args:
        active: those that hold a slot.
    """
    return ChildCounts(
        total=batch.total,
        queued=max(0, batch.total - batch.ended - active),
        active=active,
        completed=batch.completed,
        failed=batch.failed,
        cancelled=batch.cancelled,
    )


def retry_doc(rules: RetryPolicy) -> RetryDoc:
    """The policy as it is shown."""
    by_backoff = rules.backoff is not None
    return RetryDoc(
        retries=rules.retries,
        retry_delays_s=[] if by_backoff else list(rules.delays_s),
        backoff=None if rules.backoff is None else rules.backoff.value,
        retry_delay_s=rules.delay_s if by_backoff else None,
        max_retry_delay_s=rules.max_delay_s if by_backoff else None,
        retry_on=sorted(rules.retry_on),
        no_retry_on=sorted(rules.no_retry_on),
    )


def attempt_doc(attempt: Attempt, job: Job, prefix: str = "") -> AttemptDoc:
    """The attempt document. Every attempt of a job has the limits of the job."""
    here, which = f"{prefix}/api/v1/jobs/{attempt.job_id}", f"attempt={attempt.number}"
    own: dict[str, Any] = {"status": attempt.state, "links": AttemptLinks()}
    own |= {"limits": job.limits, "timeout_s": job.timeout_s or None}
    if attempt.result is not None:
        own["result_size"] = attempt.result.size
        own["links"] = AttemptLinks(
            result=f"{here}/result?{which}",
            stdout=f"{here}/logs?{which}",
            stderr=f"{here}/logs?{which}&stream=stderr",
        )
    return AttemptDoc(**shown(attempt, AttemptDoc) | own)


def event_doc(event: Event) -> EventDoc:
    return EventDoc(status=event.state, **shown(event, EventDoc))


def shown(record: object, model: type[Wire]) -> dict[str, Any]:
    """What a document shows under the names that the record has for it."""
    names = [name for name in model.model_fields if hasattr(record, name)]
    return {name: _shown(name, getattr(record, name)) for name in names}


def _shown(name: str, value: Any) -> Any:
    is_time = value is not None and (name in _TIMES or name.endswith("_at"))
    return utc(value) if is_time else value


def when_to_ask_again(job: Job, now: Micros) -> dict[str, str]:
    """The header for clients that poll: the longer a job takes, the less often; one that may start
    in an hour need not be asked for before.
    """
    if job.ended:
        return {}
    seconds = (now - job.created_at) / SECOND * _SHARE
    if job.state is JobState.QUEUED and job.not_before > now:
        seconds = max(seconds, (job.not_before - now) / SECOND)
    least, most = _RETRY_AFTER_S
    return {"Retry-After": str(round(min(max(seconds, least), most)))}


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


def delivery_doc(delivery: Delivery) -> DeliveryDoc:
    """A webhook of a job, with its latest tries."""
    tried = [DeliveryTry(**shown(one, DeliveryTry)) for one in delivery.tried]
    return DeliveryDoc(**shown(delivery, DeliveryDoc) | {"tried": tried})
