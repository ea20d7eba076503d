"""What follows for a job from the end of an attempt that its agent reports."""

from __future__ import annotations

from typing import Any

from server.domain import ending, retry
from server.domain.jobs import Job, Move, Step
from server.domain.live import live_of
from server.domain.retry import Retry, Uniform
from server.domain.service import Service
from shared.clock import Micros
from shared.units.durations import say_duration
from shared.wire import JobState, PayloadDoc, PayloadState, Reason


def attempt_ended(
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
    if payload.live is not None:
        how["said"] = live = live_of(payload.live, now)
        how["facts"] |= {"progress": live.progress, "output": live.output}
        changes |= {"heartbeat_at": live.heartbeat_at} if live.heartbeat_at else {}
    reason, message = payload.reason, payload.message
    again: Retry | None = None
    match payload.status:
        case PayloadState.COMPLETED:
            took = f" after {say_duration(payload.usage.wall_s)}" if payload.usage else ""
            return ending.end(
                job, JobState.COMPLETED, service, now, f"run.sh ended well{took}", **how
            )
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
            return ending.interrupted(
                job, service, now, reason or Reason.AGENT_ERROR, message, **how
            )
        case PayloadState.FAILED:
            reason = reason or Reason.EXIT_CODE
            message = message or "run.sh failed"
            if reason is Reason.TIMEOUT and job.timeout_s < service.timeout_s:
                most = say_duration(service.timeout_s)
                message += f" (the upload asked for it; service {service.name} allows {most})"
            again = retry.after_failure(job, service, reason, payload.exit_code, uniform)
    if again is not None:
        message = f"{message}{ending.AGAIN}"
        return ending.requeue(job, service, now, message, reason, again, **how)
    return ending.end(job, JobState.FAILED, service, now, message, reason, **how)


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
