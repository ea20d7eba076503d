"""The moves that end an attempt: to an ended state, or back into the queue; and the times that hold
for a job.

An upload may ask for less time than its service allows, never for more: what the operator sets
later holds for jobs that wait already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from server.domain import retry, states
from server.domain.errors import RetryRefused
from server.domain.jobs import UNSET, Job, Move, Step
from server.domain.live import Live
from server.domain.retry import Retry, RetryPolicy
from server.domain.service import Service
from shared.clock import SECOND, Micros
from shared.units.durations import say_duration
from shared.units.sizes import say_size
from shared.wire import JobState, Reason

_NOT_RUN: Final = frozenset({2, 126, 127})
"""Exit codes of a shell that cannot read a script, or does not find what it names."""
_LIMITS: Final[Mapping[Reason, tuple[str, Callable[[Any], str]]]] = {
    Reason.MEMORY_LIMIT: ("memory", say_size),
    Reason.DISK_LIMIT: ("disk", say_size),
    Reason.PIDS_LIMIT: ("pids", str),
    Reason.CPU_LIMIT: ("cpus", lambda cpus: f"{cpus:g} {'CPU' if cpus == 1 else 'CPUs'}"),
    Reason.LOG_LIMIT: ("log", say_size),
    Reason.RESULTS_LIMIT: ("results", say_size),
}
"""Which of its limits was hit, and how it is shown."""


def who_set_the_limit(job: Job, service: Service, reason: Reason) -> str:
    """Behind the message of a limit that was hit; empty: it was none."""
    match reason:
        case Reason.TIMEOUT:
            own, most = job.timeout_s, service.timeout_s
            shown = say_duration(most) if most else "any"
        case Reason.HEARTBEAT_TIMEOUT:
            own, most = heartbeat_timeout_s(job, service), service.heartbeat_timeout_s
            shown = say_duration(most) if most else "any"
        case _ if reason in _LIMITS:
            name, say = _LIMITS[reason]
            own, most = getattr(job.limits, name), getattr(service.limits, name)
            shown = say(most)
        case _:
            return ""
    # A job keeps the limits that it was uploaded with, whatever the service allows by now.
    if own == most:
        return f" (service {service.name} sets this limit)"
    return f" (set at its upload; service {service.name} allows {shown})"


def line_endings(job: Job, exit_code: int | None, stderr_tail: str) -> str:
    """Behind the message of a failure that Windows line endings explain; else empty."""
    known = any("(CRLF)" in warning for warning in job.upload_warnings)
    if not known or not (exit_code in _NOT_RUN or "\r" in stderr_tail):
        return ""
    return "; run.sh has Windows line endings (CRLF), which a shell takes as part of its commands"


def retry_rules(job: Job, service: Service) -> RetryPolicy:
    """The job's own, or the service's where its upload asked for none."""
    return job.retry or service.retry


def queue_timeout_s(job: Job, service: Service) -> float:
    """Longest time from ``queued_at`` to the start of an attempt; 0: any."""
    return _least(job.queue_timeout_s, service.queue_timeout_s)


def heartbeat_timeout_s(job: Job, service: Service) -> float:
    """Longest time that an attempt may be silent; 0: any."""
    return _least(job.heartbeat_timeout_s, service.heartbeat_timeout_s)


def expires_after_s(job: Job, service: Service) -> float:
    """How long its files are kept after its end; 0: for ever, or as long as those of its parent."""
    if job.parent_id is not None:
        return 0.0
    return service.expires_after_s if job.expires_after_s is None else job.expires_after_s


def _least(own: float | None, most: float) -> float:
    """0 is no limit."""
    return min(own, most) if own and most else own or most


def behind(job: Job, through: Sequence[Step]) -> Job:
    """The job as it is after some steps."""
    return replace(job, state=through[-1].to) if through else job


def reported(
    job: Job,
    move: Move,
    through: Sequence[Step],
    changes: Mapping[str, Any],
    facts: Mapping[str, Any],
    live: Live | None = None,
) -> Move:
    """A move of the job as it is :func:`behind` steps that the server has not seen, together with
    these, and with what its agent has said of the attempt.

    Args:
        changes: what the steps set of the job.
        facts: what is set of the attempt.
    """
    steps, changes = tuple(through), {**changes, **move.changes}
    of = replace(move, before=job.state, through=steps, changes=changes, seen=job)
    return replace(of, facts=facts, live=live)


def interrupted(job: Job, service: Service, now: Micros, reason: Reason, message: str) -> Move:
    """The attempt died through no fault of the bundle: again from its own budget, or Failed."""
    again = retry.after_interruption(job.infra_used, service.infra_retries)
    if again is None and job.cancel_requested_at is None:
        return end(job, service, now, JobState.FAILED, message, reason)
    return requeue(job, service, now, message, reason, again or Retry(0.0))


@dataclass(frozen=True, slots=True)
class BrokenDependency:
    """A queued job, and the first job that it depends on that did not complete."""

    job: Job
    on_id: int
    on: Job | None
    """As it is now; None: it was deleted."""


def dependency_failed(broken: BrokenDependency, service: Service, now: Micros) -> Move:
    """The end of a job that can never start.

    Only jobs that are there already can be waited for, and numbers are never given again: so each
    dependency leads to a lower number, and there is no cycle.
    """
    message = f"job {broken.on_id}, which it waits for, {_what_became_of(broken.on)}"
    return end(broken.job, service, now, JobState.FAILED, message, Reason.DEPENDENCY_FAILED)


def _what_became_of(on: Job | None) -> str:
    if on is None:
        return "was deleted"
    match on.state:
        case JobState.FAILED:
            return f"failed ({on.reason}): {on.message}" if on.reason else f"failed: {on.message}"
        case JobState.CANCELLED:
            return "was cancelled"
        case _:
            return "did not complete"


def expired(job: Job, now: Micros) -> Move:
    """It has been kept for as long as its service says."""
    message = f"expired; it had ended as {job.state}"
    changes = {"expires_at": None, "dead_letter": False}
    return move(job, JobState.CLEANED, now, message, job.reason, changes)


def end(
    job: Job,
    service: Service,
    now: Micros,
    to: JobState,
    message: str,
    reason: Reason | None = None,
) -> Move:
    """To an ended state; what it left expires from now on.

    A failure of a service with dead letters is one; the children of a batch are its parent's.
    """
    changes, kept_s = dict[str, Any](), expires_after_s(job, service)
    if to is JobState.FAILED:
        if reason is Reason.SHUTDOWN and service.on_shutdown == "stop":
            message += f"; it is not tried again, as service {service.name} says (on_shutdown)"
        else:
            rules = retry_rules(job, service)
            message += retry.why_not(rules, job.retries_used, reason, job.exit_code)
    if to is JobState.FAILED and service.dead_letter and job.parent_id is None:
        changes["dead_letter"], kept_s = True, service.dead_letter_expires_after_s
    changes |= {"ended_at": now, "expires_at": now + round(kept_s * SECOND) if kept_s else None}
    return move(job, to, now, message, reason, changes)


_OF_AN_ATTEMPT: Final = (
    *("agent", "payload_id", "submitted_at", "heartbeat_at", "progress", "output"),
)
"""Fields of a job that are reset for the next attempt."""
_OF_A_RUN: Final = (
    *_OF_AN_ATTEMPT,
    *("started_at", "exit_code", "stderr_tail", "warnings", "enforcement", "usage", "result"),
    *("retries_used", "infra_used", "later_used", "waits_since", "cancel_requested_at"),
    *("ended_at", "expires_at", "dead_letter"),
)
"""And those that a retry by hand does."""


def queued_again(now: Micros, reset: Iterable[str] = _OF_AN_ATTEMPT) -> dict[str, Any]:
    """What a job in the queue has when another attempt follows. ``reset``: fields that it has as a
    new job has them.
    """
    return {name: UNSET[name] for name in reset} | {"queued_at": now, "not_before": 0}


def requeue(
    job: Job,
    service: Service,
    now: Micros,
    message: str,
    reason: Reason | None,
    again: Retry,
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> Move:
    """Back into the queue; a job that is to be cancelled is Cancelled instead. ``fields``: for
    programs, beside those of the retry.
    """
    if job.cancel_requested_at is not None:
        return end(job, service, now, JobState.CANCELLED, f"cancelled; {message}")
    delay = round(again.delay_s * SECOND)
    changes = queued_again(now) | {"waits_since": None, **again.used}
    if delay:
        changes["waits_since"] = changes["not_before"] = now + delay
    if again.waits_on:
        changes["waits_since"] = job.queued_at if job.waits_since is None else job.waits_since
    said: Mapping[str, Any] = {}
    if again.event:
        said = {"delay_s": again.delay_s, "reason": reason, **again.fields, **fields}
    message += again.note
    return move(job, JobState.QUEUED, now, message, reason, changes, again.event, said)


def retried(job: Job, service: Service | None, now: Micros, by: str) -> Move:
    """Queue a job that has failed or was cancelled again, with fresh retries. Its attempts, their
    numbers and its history go on. Raises RetryRefused.

    Args:
        service: its service; None: the server has it no more.
        by: who asked for it.
    """
    code, why = "", ""
    if job.state is JobState.CLEANED or (job.ended and job.bundle is None):
        code, why = "bundle_gone", "its bundle was removed when it expired: upload it again"
    elif job.state not in states.RETRIED_BY_HAND:
        code = "not_retryable"
        why = "it has completed" if job.ended else f"it has not ended: it is {job.state}"
    elif job.delete_requested_at is not None:
        code, why = "being_deleted", "it is being deleted"
    elif service is None:
        code = "unknown_service"
        why = f"the server has no service {job.service} in its settings"
    if code:
        raise RetryRefused(job.id, code, why)
    return next_run(job, now, f"retried by {by}", {"by": by, "run": job.run + 1})


def next_run(
    job: Job, now: Micros, message: str, fields: Mapping[str, Any] = MappingProxyType({})
) -> Move:
    """As :func:`retried`, of a job that may be."""
    changes = queued_again(now, _OF_A_RUN) | {"run": job.run + 1}
    return move(job, JobState.QUEUED, now, message, None, changes, "job.retried", fields)


def move(
    job: Job,
    to: JobState,
    at: Micros,
    message: str,
    reason: Reason | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    event: str = "",
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> Move:
    """A move of the job as it was seen."""
    of = (job.id, job.attempt, job.state, to, at, message, reason)
    return Move(*of, changes=changes, event=event, fields=fields, seen=job)
