"""What a payload that ended means for its job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from server.domain import endings, retry
from server.domain.jobs import Job, Move
from server.domain.service import Service
from server.domain.states import states_between
from shared.clock import Micros, from_iso
from shared.units.durations import say_duration
from shared.wire import JobState, PayloadDoc, PayloadState, Reason

S = JobState

ENDED = frozenset(
    {
        PayloadState.COMPLETED,
        PayloadState.FAILED,
        PayloadState.INVALID,
        PayloadState.KILLED,
        PayloadState.CLEANED,
    }
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the end of an attempt leads."""

    move: Move
    keep_result: bool
    """False: the attempt is followed by another, and its result is never shown."""


def is_of(job: Job, payload: PayloadDoc, agent: str) -> bool:
    """Whether a payload under the job's key is the job's, and not another bundle's.

    A key comes twice when a database was restored from a backup, and a peer may say what it likes:
    only the agent that the job was sent to is believed without the digest of the job's bundle.
    """
    if payload.bundle_digest is None:
        return job.agent == agent
    return job.bundle is not None and payload.bundle_digest == job.bundle.digest


def judge(
    job: Job, payload: PayloadDoc, service: Service, now: Micros, before: JobState
) -> Verdict:
    """The move that the end of the current attempt asks for.

    Args:
        before: the state that the job is in by then.
    """
    facts: dict[str, Any] = {
        "exit_code": payload.exit_code,
        "stderr_tail": payload.stderr_tail,
        "usage": payload.usage,
        "warnings": payload.warnings,
        "enforcement": payload.enforcement,
    }
    reason, message = payload.reason, payload.message
    how = None
    match payload.status:
        case PayloadState.COMPLETED:
            message = f"run.sh ended well{_took(payload)}"
            move = endings.end(job, S.COMPLETED, service, now, message, before=before, **facts)
            return Verdict(move, keep_result=True)
        case PayloadState.KILLED:
            message = "cancelled" if job.cancel_requested_at else "killed on the agent"
            move = endings.end(job, S.CANCELLED, service, now, message, before=before, **facts)
            return Verdict(move, keep_result=True)
        case PayloadState.CLEANED:
            reason, message = (
                Reason.AGENT_LOST,
                "the agent removed the result before it could be fetched",
            )
        case PayloadState.INVALID:
            reason, message = (
                Reason.INVALID_BUNDLE,
                message or "the agent found the bundle invalid",
            )
        case PayloadState.FAILED if payload.interrupted:
            reason = reason or Reason.AGENT_ERROR
            how = retry.after_interruption(job, service)
        case PayloadState.FAILED:
            reason = reason or Reason.EXIT_CODE
            message = message or "run.sh failed"
            if reason is Reason.TIMEOUT and job.timeout_s < service.timeout_s:
                most = say_duration(service.timeout_s)
                message += f" (the upload asked for it; service {service.name} allows {most})"
            how = retry.after_failure(job, service, reason, payload.exit_code)
    if how is not None:
        message = f"{message}; it will be tried again"
        move = endings.again(job, service, now, message, reason, how, before=before)
        return Verdict(move, keep_result=move.to is S.CANCELLED)
    move = endings.end(job, S.FAILED, service, now, message, reason, before=before, **facts)
    return Verdict(move, keep_result=True)


def resumed(job: Job, agent: str, now: Micros) -> Move:
    """The first move of a job that was queued again, and whose last attempt has Completed after
    all; the others follow in the same write.
    """
    message = f"agent {agent} is back with the attempt that was given up, and it has ended well"
    changes = {"agent": agent}
    return Move(job.id, job.attempt, S.QUEUED, S.PROCESSING, now, message, changes=changes)


def _took(payload: PayloadDoc) -> str:
    return f" after {say_duration(payload.usage.wall_s)}" if payload.usage else ""


def steps(job: Job, payload: PayloadDoc, to: JobState, now: Micros) -> list[Move]:
    """The moves up to and with ``to`` (Submitted or Running) that the job has not made yet."""
    moves: list[Move] = []
    before = job.state
    for state in states_between(before, to):
        if state is S.SUBMITTED:
            at, message, field = now, f"agent {job.agent} has it", "submitted_at"
        else:
            at = from_iso(payload.started_at) if payload.started_at else now
            message, field = "run.sh started", "started_at"
        changes = {field: at, "payload_id": payload.id}
        moves.append(Move(job.id, job.attempt, before, state, at, message, changes=changes))
        before = state
    return moves
