"""What happens to a job when an attempt begins, gets on, ends, is interrupted or is refused.

Every decision is made here and comes back as one :class:`~server.domain.jobs.Move`; the stages find
out what happened, and make the move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from server.domain import retry
from server.domain.jobs import Job, Move, Step
from server.domain.retry import Retry, Uniform
from server.domain.service import Service
from server.domain.states import states_between
from shared.clock import SECOND, Micros, from_iso
from shared.units.durations import say_duration
from shared.wire import JobState, PayloadDoc, PayloadState, Reason

_AGAIN: Final = "; it will be tried again"
_NEW_ATTEMPT: Final = frozenset({"stale_attempt", "key_refused", "digest_mismatch"})
ENDED: Final = frozenset(PayloadState) - {PayloadState.PREPARED, PayloadState.RUNNING}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An agent's no to a job that was sent to it.

    Attributes:
        code: for programs.
        message: for people.
        final: it would be the same next time.
        retry_after_s: when to ask again, where the agent said so.
    """

    agent: str
    code: str
    message: str
    final: bool
    retry_after_s: float | None = None

    @property
    def wants_new_attempt(self) -> bool:
        """It takes the job under another attempt's number."""
        return self.code in _NEW_ATTEMPT

    @property
    def offered(self) -> bool:
        return self.code != "not_offered"

    @property
    def declined(self) -> bool:
        """It says nothing about the job: the agent takes none of the service now."""
        if self.wants_new_attempt:
            return False
        return not self.offered or (not self.final and self.retry_after_s is not None)


def is_of(job: Job, payload: PayloadDoc, agent: str) -> bool:
    """Whether a payload under the job's key is the job's, and not another bundle's.

    A key comes twice when a database was restored from a backup, and a peer may say what it likes:
    only the agent that the job was sent to is believed without the digest of the job's bundle.
    """
    if payload.bundle_digest is None:
        return job.agent == agent
    return job.bundle is not None and payload.bundle_digest == job.bundle.digest


# -- on its way


def submitted(job: Job, agent: str, payload_id: int, now: Micros) -> Move:
    """An agent has taken the job."""
    changes = {"payload_id": payload_id, "submitted_at": now}
    return _move(job, JobState.SUBMITTED, now, f"agent {agent} has it", changes=changes)


def advance(
    job: Job, payload: PayloadDoc, service: Service, now: Micros, agent: str, uniform: Uniform
) -> Move | None:
    """The move to where the payload is by now; None: the job is there already.

    Of a job that was queued again the payload is the attempt that was given up: one that has
    Completed after all saves another one.
    """
    through: list[Step] = []
    changes: dict[str, Any] = {}
    state = job.state
    if state is JobState.QUEUED:
        state = JobState.PROCESSING
        message = f"agent {agent} is back with the attempt that was given up, and it has ended well"
        through.append(Step(state, now, message))
        changes["agent"] = agent
    ended = payload.status in ENDED
    started = payload.started_at if ended else payload.status is not PayloadState.PREPARED
    for step in states_between(state, JobState.RUNNING if started else JobState.SUBMITTED):
        if step is JobState.SUBMITTED:
            through.append(Step(step, now, f"agent {agent} has it"))
            changes["submitted_at"] = now
        else:
            at = from_iso(payload.started_at) if payload.started_at else now
            through.append(Step(step, at, "run.sh started"))
            changes["started_at"] = at
        changes["payload_id"] = payload.id
    if ended:
        return _ended(job, payload, service, now, uniform, tuple(through), changes)
    if not through:
        return None
    last = through.pop()
    return _move(job, last.to, last.at, last.message, changes=changes, through=tuple(through))


def unknown(job: Job, now: Micros, message: str, reason: Reason | None = None) -> Move:
    """It cannot be found out now what the attempt does."""
    return _move(job, JobState.UNKNOWN, now, message, reason)


# -- at its end


def _ended(
    job: Job,
    payload: PayloadDoc,
    service: Service,
    now: Micros,
    uniform: Uniform,
    through: tuple[Step, ...],
    changes: dict[str, Any],
) -> Move:
    how: dict[str, Any] = {
        "through": through,
        "changes": changes,
        "facts": changes | _facts(payload),
    }
    reason, message = payload.reason, payload.message
    again: Retry | None = None
    match payload.status:
        case PayloadState.COMPLETED:
            took = f" after {say_duration(payload.usage.wall_s)}" if payload.usage else ""
            return _end(job, JobState.COMPLETED, service, now, f"run.sh ended well{took}", **how)
        case PayloadState.KILLED:
            message = "cancelled" if job.cancel_requested_at else "killed on the agent"
            return _end(job, JobState.CANCELLED, service, now, message, **how)
        case PayloadState.CLEANED:
            reason = Reason.AGENT_LOST
            message = "the agent removed the result before it could be fetched"
        case PayloadState.INVALID:
            reason = Reason.INVALID_BUNDLE
            message = message or "the agent found the bundle invalid"
        case PayloadState.FAILED if payload.interrupted:
            return interrupted(job, service, now, reason or Reason.AGENT_ERROR, message, **how)
        case PayloadState.FAILED:
            reason = reason or Reason.EXIT_CODE
            message = message or "run.sh failed"
            if reason is Reason.TIMEOUT and job.timeout_s < service.timeout_s:
                most = say_duration(service.timeout_s)
                message += f" (the upload asked for it; service {service.name} allows {most})"
            again = retry.after_failure(job, service, reason, payload.exit_code, uniform)
    if again is not None:
        message = f"{message}{_AGAIN}"
        return _requeue(job, service, now, message, reason, again, **how)
    return _end(job, JobState.FAILED, service, now, message, reason, **how)


def interrupted(
    job: Job, service: Service, now: Micros, /, reason: Reason, message: str, **how: Any
) -> Move:
    """The attempt died through no fault of the bundle: again from its own budget, or Failed."""
    again = retry.after_interruption(job, service)
    if again is None and job.cancel_requested_at is None:
        return _end(job, JobState.FAILED, service, now, message, reason, **how)
    again = again or Retry(0.0, job.infra_used, job.retries_used)
    return _requeue(job, service, now, f"{message}{_AGAIN}", reason, again, **how)


def not_sent(job: Job, service: Service, now: Micros, message: str, delay_s: float) -> Move:
    """No agent has taken the attempt. That is not the fault of the job, so no retry is used up."""
    again = Retry(delay_s, job.infra_used, job.retries_used)
    return _requeue(job, service, now, message, None, again)


def failed(job: Job, service: Service, now: Micros, reason: Reason, message: str) -> Move:
    """Nothing can be tried any more."""
    return _end(job, JobState.FAILED, service, now, message, reason)


def refused(
    job: Job, service: Service, now: Micros, refusal: Refusal, *, delay_s: float, offered: bool
) -> Move:
    """The agent that it was sent to does not take it.

    Args:
        delay_s: until it may be sent again, where it is.
        offered: whether an agent offers the service, though perhaps not now.
    """
    message = f"agent {refusal.agent} refused it: {refusal.message}"
    if refusal.wants_new_attempt:
        return not_sent(job, service, now, message, delay_s)
    if refusal.declined and not offered:
        return failed(job, service, now, Reason.NOT_OFFERED, message)
    if refusal.declined:
        message = f"agent {refusal.agent} does not take it now: {refusal.message}"
        return not_sent(job, service, now, message, delay_s)
    if refusal.final:
        invalid = refusal.code == "invalid_bundle"
        reason = Reason.INVALID_BUNDLE if invalid else Reason.AGENT_ERROR
        return failed(job, service, now, reason, message)
    return interrupted(job, service, now, Reason.AGENT_ERROR, message)


def unreached(
    job: Job,
    service: Service,
    now: Micros,
    what: str,
    unreachable_s: float,
    *,
    unreachable_after_s: float,
    lost_after_s: float,
) -> Move | None:
    """An agent could not be reached for ``unreachable_s``: its jobs are Unknown, later lost."""
    if unreachable_s > lost_after_s:
        message = f"{what} for {say_duration(unreachable_s)}: the attempt is given up as lost"
        if job.cancel_requested_at is not None:
            message += ", whether its processes are dead is not known"
        return interrupted(job, service, now, Reason.AGENT_LOST, message)
    if unreachable_s > unreachable_after_s and job.state is not JobState.UNKNOWN:
        message = f"{what} for {say_duration(unreachable_s)}; the job goes on when it is back"
        return unknown(job, now, message, Reason.AGENT_UNREACHABLE)
    return None


def cancelled(job: Job, service: Service, now: Micros, message: str) -> Move:
    """Its user does not want it, and none of its processes is alive."""
    return _end(job, JobState.CANCELLED, service, now, message)


def expired(job: Job, now: Micros) -> Move:
    """It has been kept for as long as its service says."""
    message = f"expired; it had ended as {job.state}"
    return _move(job, JobState.CLEANED, now, message, job.reason, changes={"expires_at": None})


def _end(
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
    expires = now + round(service.expires_after_s * SECOND)
    ended = (changes or {}) | {"ended_at": now, "expires_at": expires}
    return _move(job, to, now, message, reason, changes=ended, **how)


def _requeue(
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
        message = f"cancelled; {message.removesuffix(_AGAIN)}"
        return _end(job, JobState.CANCELLED, service, now, message, changes=changes, **how)
    delay = round(again.delay_s * SECOND)
    back = {
        "queued_at": now,
        "not_before": now + delay if delay else 0,
        "infra_used": again.infra_used,
        "retries_used": again.retries_used,
        "agent": None,
        "payload_id": None,
        "submitted_at": None,
        "started_at": None,
    }
    return _move(job, JobState.QUEUED, now, message, reason, changes=back, **how)


def _move(
    job: Job,
    to: JobState,
    at: Micros,
    message: str,
    reason: Reason | None = None,
    **how: Any,
) -> Move:
    return Move(job.id, job.attempt, job.state, to, at, message, reason, **how)


def _facts(payload: PayloadDoc) -> dict[str, Any]:
    return {
        "exit_code": payload.exit_code,
        "stderr_tail": payload.stderr_tail,
        "usage": payload.usage,
        "warnings": payload.warnings,
        "enforcement": payload.enforcement,
        "stdout_bytes": payload.result.stdout_bytes if payload.result else None,
        "stderr_bytes": payload.result.stderr_bytes if payload.result else None,
    }
