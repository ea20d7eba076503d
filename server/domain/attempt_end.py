"""What follows for a job from the end of an attempt that its agent reports."""

from __future__ import annotations

from typing import Any, Final

from server.domain import ending, retry
from server.domain.explanations import line_endings, who_set_the_limit
from server.domain.jobs import Job, Move, Step
from server.domain.live import live_of
from server.domain.retry import Uniform
from server.domain.service import Service
from shared.clock import Micros
from shared.units.durations import say_duration
from shared.units.sizes import say_count
from shared.wire import JobState, PayloadDoc, PayloadState, Reason, RetryLater

_TRY_LATER: Final = 75
"""Exit code (EX_TEMPFAIL) by which run.sh asks to be tried later; an older agent says no more."""
_LONGEST_WHY: Final = 500


def attempt_ended(
    job: Job,
    payload: PayloadDoc,
    service: Service,
    now: Micros,
    uniform: Uniform,
    through: tuple[Step, ...],
    changes: dict[str, Any],
    facts: dict[str, Any],
) -> Move:
    """The move that follows.

    Args:
        through: steps before it that the server has not seen.
        changes: what they set of the job.
        facts: what they set of the attempt.
    """
    how: dict[str, Any] = {
        "through": through,
        "changes": changes,
        "facts": facts | _facts(payload),
    }
    if payload.live is not None:
        how["live"] = live = live_of(payload.live, now)
        how["facts"] |= {"progress": live.progress, "output": live.output}
        changes |= {"heartbeat_at": live.heartbeat_at} if live.heartbeat_at else {}
    reason, message = payload.reason or Reason.EXIT_CODE, payload.message
    match payload.status:
        case PayloadState.COMPLETED:
            took = f" after {say_duration(payload.usage.wall_s)}" if payload.usage else ""
            message = f"{job.entry} ended well{took}"
            return ending.end(job, JobState.COMPLETED, service, now, message, **how)
        case PayloadState.KILLED:
            message = "cancelled" if job.cancel_requested_at else "killed on the agent"
            return ending.end(job, JobState.CANCELLED, service, now, message, **how)
        case PayloadState.CLEANED:
            reason = Reason.AGENT_LOST
            message = "the agent removed the result before it could be fetched"
        case PayloadState.INVALID:
            reason = Reason.INVALID_BUNDLE
            message = message or "the agent found the bundle invalid"
        case PayloadState.FAILED if payload.interrupted:
            reason = payload.reason or Reason.AGENT_ERROR
            return _interrupted(job, service, now, uniform, reason, message, how)
        case PayloadState.FAILED:
            asked = _asked_for_later(payload)
            if asked is not None:
                return _later(job, service, now, asked, how)
            message = message or f"{job.entry} failed"
            if reason is Reason.EXIT_CODE:
                message += line_endings(job, payload.exit_code, payload.stderr_tail)
            else:
                message += who_set_the_limit(job, service, reason)
            again = retry.after_failure(job, service, reason, payload.exit_code, uniform)
            if again is not None:
                how["fields"] = {"exit_code": payload.exit_code}
                return ending.requeue(job, service, now, message, reason, again, **how)
    return ending.end(job, JobState.FAILED, service, now, message, reason, **how)


def _interrupted(
    job: Job,
    service: Service,
    now: Micros,
    uniform: Uniform,
    reason: Reason,
    message: str,
    how: dict[str, Any],
) -> Move:
    """The attempt died under the job; that of a stopping agent may end the job, or not be counted.

    When the budget of interruptions is used up, the job's own retries are taken where they are for
    this reason.
    """
    if reason is Reason.SHUTDOWN and service.on_shutdown == "resubmit":
        return ending.requeue(job, service, now, message, reason, retry.resubmitted(), **how)
    if reason is Reason.SHUTDOWN and service.on_shutdown == "stop":
        if job.cancel_requested_at is None:
            return ending.end(job, JobState.FAILED, service, now, message, reason, **how)
    elif retry.after_interruption(job, service) is None:
        again = retry.after_failure(job, service, reason, None, uniform)
        if again is not None:
            return ending.requeue(job, service, now, message, reason, again, **how)
    return ending.interrupted(job, service, now, reason, message, **how)


def _asked_for_later(payload: PayloadDoc) -> RetryLater | None:
    if payload.retry_later is None and payload.exit_code == _TRY_LATER:
        return RetryLater() if payload.reason in (None, Reason.EXIT_CODE) else None
    return payload.retry_later


def _later(job: Job, service: Service, now: Micros, asked: RetryLater, how: dict[str, Any]) -> Move:
    why = asked.message[:_LONGEST_WHY]
    message = "it asked to be tried later" + (f": {why}" if why else "")
    again = retry.later(job, service, asked)
    if again is not None:
        how["fields"] = {"reason": why}
        return ending.requeue(job, service, now, message, Reason.EXIT_CODE, again, **how)
    times = say_count(service.retry_later_limit, "time")
    message += f"; it has done so {times} before, the most that service {service.name} allows"
    return ending.end(job, JobState.FAILED, service, now, message, Reason.EXIT_CODE, **how)


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
