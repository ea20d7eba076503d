"""What happens to a job when its agent reports of the attempt, or cannot be reached.

Every decision comes back as one :class:`~server.domain.jobs.Move`; the stages find out what
happened, and make the move.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from server.domain import ending, retry
from server.domain.agents import RefusedByAgent
from server.domain.jobs import Attempt, Job, Move, Step
from server.domain.live import live_of
from server.domain.retry import Retry, Uniform
from server.domain.service import Service
from server.domain.states import HOLDS_SLOT, states_between
from shared.clock import Micros, from_iso
from shared.units.durations import say_duration
from shared.units.sizes import say_count, say_size
from shared.wire import JobState, Limits, PayloadDoc, PayloadState, Reason, RetryLater

ZIP_OVERHEAD: Final = 1 << 30
"""Bytes of a result beside files and logs: what a ZIP says of each, twice, and what does not get
smaller by compression."""
_LONGEST_S: Final = 1e10
"""That an attempt can have used: ten years of thirty processors."""
ENDED: Final = frozenset(PayloadState) - {PayloadState.PREPARED, PayloadState.RUNNING}


def is_of(
    job: Job,
    payload: PayloadDoc,
    agent: str,
    agent_id: str | None = None,
    attempt: Attempt | None = None,
) -> bool:
    """Whether an agent's word about a payload counts for the job.

    It counts if the attempt was sent to this agent, under the payload's key, with the payload's
    bundle. The key and the digest are no secrets, so one agent must not speak for another; and a
    key comes twice when a database was restored from a backup.

    Args:
        agent_id: of the agent's record.
        attempt: a past one; None: the job's current one, which is under way.
    """
    if attempt is None:
        key, same_agent = job.key, job.agent == agent
    else:
        key, same_agent = attempt.key, attempt.was_sent_to(agent, agent_id)
    if payload.key is None:  # of a job-orchestrator client, which was asked for its own number
        return same_agent
    if not same_agent or payload.key != str(key):
        return False
    return job.bundle is not None and payload.bundle_digest == job.bundle.digest


def most_result(limits: Limits) -> int:
    """Bytes that what an attempt leaves has at most; its agent may say anything."""
    return limits.results + 2 * limits.log + ZIP_OVERHEAD


def bounded(job: Job, payload: PayloadDoc) -> PayloadDoc:
    """The payload; without its result, and as failed by its agent, if that is larger than a result
    of the job can be: this disk is everybody's. And without its usage, if that cannot be counted.
    """
    used, most = payload.usage, most_result(job.limits)
    if used is not None:
        memory, times = used.peak_memory_bytes or 0, (used.wall_s, used.cpu_s or 0.0)
        if not (all(0 <= one <= _LONGEST_S for one in times) and 0 <= memory < 1 << 63):
            payload = payload.model_copy(update={"usage": None})
    if payload.result is None or payload.result.size <= most:
        return payload
    message = f"its agent says that it left {payload.result.size} bytes, at most {most} are taken"
    return _without_result(payload, message, reason=Reason.AGENT_ERROR, interrupted=True)


def fitting(payload: PayloadDoc, most: float) -> PayloadDoc:
    """The payload; without its result, and as failed, if that is larger than ``most``, which is all
    that the server's disk can ever hold: it would wait for ever.
    """
    result = payload.result
    if result is None or result.size <= most:
        return payload
    message = (
        f"it left {say_size(result.size)}, and the server's disk can never hold more than "
        f"{say_size(max(0, round(most)))}"
    )
    return _without_result(payload, message, reason=Reason.RESULTS_LIMIT, retry_later=None)


def _without_result(payload: PayloadDoc, message: str, **instead: Any) -> PayloadDoc:
    how: dict[str, Any] = {"result": None, "warnings": [*payload.warnings, message]}
    if payload.status is not PayloadState.KILLED:
        how |= {"status": PayloadState.FAILED, "message": message, "exit_code": None, **instead}
    return payload.model_copy(update=how)


def leaves_children(payload: PayloadDoc) -> bool:
    """Whether its result is more than a result: the beginning of a batch."""
    completed = payload.status is PayloadState.COMPLETED
    return completed and payload.result is not None and payload.result.children > 0


def expects(job: Job, payload: PayloadDoc) -> bool:
    """Whether the job waits for what the payload reports.

    A job that was queued again has given its attempt up. Only if that attempt has Completed after
    all, its result is used and saves another attempt.
    """
    if job.deferred:
        return False  # its attempt has ended, and has left children
    if job.state is JobState.QUEUED:
        if job.gather:
            return False  # the attempt may be the one that left the children
        return payload.status is PayloadState.COMPLETED and job.cancel_requested_at is None
    return job.state in HOLDS_SLOT


def goes_on(known: PayloadDoc, newer: PayloadDoc) -> bool:
    """Whether the newer document can be what became of the known one: what has ended does not run
    again, and what runs is not prepared again, though its agent's answer may come later than that.
    """
    if known.status in ENDED:
        return False
    return known.status is PayloadState.PREPARED or newer.status is not PayloadState.PREPARED


def advance(
    job: Job,
    payload: PayloadDoc,
    service: Service,
    now: Micros,
    agent: str,
    uniform: Uniform,
    taken_at: Micros | None = None,
) -> Move | None:
    """The move to where the payload is by now; None: the job is there already.

    Args:
        taken_at: when the agent took the attempt, if the job does not say so yet.

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
    if job.submitted_at is None and taken_at is not None:
        job = dataclasses.replace(job, submitted_at=taken_at)
    at = started_at(job, payload, now) if started else now
    for step in states_between(state, JobState.RUNNING if started else JobState.SUBMITTED):
        if step is JobState.SUBMITTED:
            since = at if taken_at is None else taken_at
            through.append(Step(step, since, f"agent {agent} has it"))
            changes["submitted_at"] = since
        else:
            through.append(Step(step, at, f"{job.entry} started"))
            changes["started_at"] = at
        changes["payload_id"] = payload.id
    facts = dict(changes)
    if "started_at" in changes:  # of the attempt; the job's is the first start of its run
        changes |= {"started_at": job.started_at or at, "heartbeat_at": at}
    if ended:
        live = None if payload.live is None else live_of(payload.live, now)
        result = payload.result
        facts |= {
            "exit_code": payload.exit_code,
            "stderr_tail": payload.stderr_tail,
            "usage": payload.usage,
            "warnings": payload.warnings,
            "enforcement": payload.enforcement,
            "stdout_bytes": result.stdout_bytes if result else None,
            "stderr_bytes": result.stderr_bytes if result else None,
        }
        if live is not None:
            facts |= {"progress": live.progress, "output": live.output}
            changes |= {"heartbeat_at": live.heartbeat_at} if live.heartbeat_at else {}
        seen = dataclasses.replace(ending.behind(job, through), exit_code=payload.exit_code)
        end_of_it = _attempt_ended(seen, payload, service, now, uniform)
        return ending.reported(job, end_of_it, through, changes, facts, live)
    if not through:
        return None
    *before, last = through
    newest = ending.move(ending.behind(job, before), last.to, last.at, last.message)
    return ending.reported(job, newest, before, changes, facts)


def unknown(job: Job, now: Micros, message: str, reason: Reason | None = None) -> Move:
    """It cannot be found out now what the attempt does."""
    return ending.move(job, JobState.UNKNOWN, now, message, reason)


def unreached(job: Job, service: Service, now: Micros, what: str, *, lost: bool) -> Move:
    """Its agent cannot be reached, as ``what`` says: the attempt is given up, or may go on."""
    is_cancelled = job.cancel_requested_at is not None
    if lost:
        message = f"{what}: the attempt is given up as lost"
        if is_cancelled:
            message += ", whether its processes are dead is not known"
        return ending.interrupted(job, service, now, Reason.AGENT_LOST, message)
    message = f"{what}; the job {'is cancelled' if is_cancelled else 'goes on'} when it is back"
    return unknown(job, now, message, Reason.AGENT_UNREACHABLE)


_LONGEST_WHY: Final = 500


def _attempt_ended(
    job: Job, payload: PayloadDoc, service: Service, now: Micros, uniform: Uniform
) -> Move:
    reason, message = payload.reason or Reason.EXIT_CODE, payload.message
    match payload.status:
        case PayloadState.COMPLETED:
            took = f" after {say_duration(payload.usage.wall_s)}" if payload.usage else ""
            message = f"{job.entry} ended well{took}"
            return ending.end(job, service, now, JobState.COMPLETED, message)
        case PayloadState.KILLED:
            message = "cancelled" if job.cancel_requested_at else "killed on the agent"
            return ending.end(job, service, now, JobState.CANCELLED, message)
        case PayloadState.CLEANED:
            reason = Reason.AGENT_LOST
            message = "the agent removed the result before it could be fetched"
        case PayloadState.INVALID:
            reason = Reason.INVALID_BUNDLE
            message = message or "the agent found the bundle invalid"
        case PayloadState.FAILED if payload.interrupted:
            if job.state is JobState.SUBMITTED:  # another attempt does not start it twice
                service = dataclasses.replace(service, infra_retries=max(1, service.infra_retries))
            reason = payload.reason or Reason.AGENT_ERROR
            message = message or "the attempt was interrupted"
            return _interrupted(job, service, now, uniform, reason, message)
        case PayloadState.FAILED if payload.retry_later is not None:
            return _later(job, service, now, payload.retry_later)
        case PayloadState.FAILED:
            message = message or f"{job.entry} failed"
            if reason is Reason.EXIT_CODE:
                message += ending.line_endings(job, payload.exit_code, payload.stderr_tail)
            else:
                message += ending.who_set_the_limit(job, service, reason)
            rules, exit_code = ending.retry_rules(job, service), payload.exit_code
            again = retry.after_failure(rules, job.retries_used, reason, exit_code, uniform)
            if again is not None:
                fields = {"exit_code": exit_code}
                return ending.requeue(job, service, now, message, reason, again, fields)
    return ending.end(job, service, now, JobState.FAILED, message, reason)


def _interrupted(
    job: Job, service: Service, now: Micros, uniform: Uniform, reason: Reason, message: str
) -> Move:
    """The attempt died under the job; that of a stopping agent may end the job, or not be counted.

    When the budget of interruptions is used up, the job's own retries are taken where they are for
    this reason.
    """
    if reason is Reason.SHUTDOWN and service.on_shutdown == "resubmit":
        return ending.requeue(job, service, now, message, reason, retry.resubmitted())
    if reason is Reason.SHUTDOWN and service.on_shutdown == "stop":
        if job.cancel_requested_at is None:
            return ending.end(job, service, now, JobState.FAILED, message, reason)
    elif retry.after_interruption(job.infra_used, service.infra_retries) is None:
        rules = ending.retry_rules(job, service)
        again = retry.after_failure(rules, job.retries_used, reason, None, uniform)
        if again is not None:
            return ending.requeue(job, service, now, message, reason, again)
    return ending.interrupted(job, service, now, reason, message)


def _later(job: Job, service: Service, now: Micros, asked: RetryLater) -> Move:
    why = asked.message[:_LONGEST_WHY]
    message = "it asked to be tried later" + (f": {why}" if why else "")
    most, delay_s = service.retry_later_limit, service.retry_later_delay_s
    again = retry.later(job.later_used, most, delay_s, asked)
    if again is not None:
        fields = {"reason": why}
        return ending.requeue(job, service, now, message, Reason.EXIT_CODE, again, fields)
    times = say_count(most, "time")
    message += f"; it has done so {times} before, the most that service {service.name} allows"
    return ending.end(job, service, now, JobState.FAILED, message, Reason.EXIT_CODE)


def not_sent(job: Job, service: Service, now: Micros, message: str, delay_s: float) -> Move:
    """No agent has taken the attempt. That is not the fault of the job, so no retry is used up, and
    its queue timeout goes on.
    """
    return ending.requeue(job, service, now, message, None, Retry(delay_s, waits_on=True))


def refused(
    job: Job, service: Service, now: Micros, no: RefusedByAgent, *, delay_s: float, offered: bool
) -> Move:
    """The agent that it was sent to does not take it.

    Args:
        delay_s: until it may be sent again, where it is.
        offered: whether an agent offers the service, though perhaps not now.
    """
    message = f"agent {job.agent} refused it: {no}"
    if no.wants_new_attempt:
        return not_sent(job, service, now, message, delay_s)
    if no.declined and not offered:
        return ending.end(job, service, now, JobState.FAILED, message, Reason.NOT_OFFERED)
    if no.declined:
        message = f"agent {job.agent} does not take it now: {no}"
        return not_sent(job, service, now, message, delay_s)
    if no.final:
        invalid = no.code == "invalid_bundle"
        reason = Reason.INVALID_BUNDLE if invalid else Reason.AGENT_ERROR
        return ending.end(job, service, now, JobState.FAILED, message, reason)
    return ending.interrupted(job, service, now, Reason.AGENT_ERROR, message)


def started_at(job: Job, payload: PayloadDoc, now: Micros) -> Micros:
    """When run.sh started: never before the job was sent, nor in the future.

    The clocks of two hosts may differ by any amount, so a time of an agent is never compared with
    one of the server. An agent is believed how long after its intake of the attempt something was.
    """
    if payload.started_at is None:
        return now
    try:
        at = from_iso(payload.started_at)
        if job.submitted_at is not None and payload.created_at is not None:
            at = job.submitted_at + at - from_iso(payload.created_at)
    except (ValueError, OverflowError):
        return now  # it may say anything
    since = job.queued_at if job.submitted_at is None else job.submitted_at
    return min(now, max(since, at))
