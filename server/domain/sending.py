"""What happens to a job when it is sent to an agent: taken, refused, or neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from server.domain import ending
from server.domain.jobs import Job, Move
from server.domain.retry import Retry
from server.domain.service import Service
from shared.clock import Micros
from shared.wire import JobState, Reason

_NEW_ATTEMPT: Final = frozenset({"stale_attempt", "key_refused", "digest_mismatch"})


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


def submitted(job: Job, agent: str, payload_id: int, now: Micros) -> Move:
    """An agent has taken the job."""
    changes = {"payload_id": payload_id, "submitted_at": now}
    return ending.move(job, JobState.SUBMITTED, now, f"agent {agent} has it", changes=changes)


def not_sent(job: Job, service: Service, now: Micros, message: str, delay_s: float) -> Move:
    """No agent has taken the attempt. That is not the fault of the job, so no retry is used up, and
    its queue timeout goes on.
    """
    return ending.requeue(job, service, now, message, None, Retry(delay_s, waits_on=True))


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
        return ending.failed(job, service, now, Reason.NOT_OFFERED, message)
    if refusal.declined:
        message = f"agent {refusal.agent} does not take it now: {refusal.message}"
        return not_sent(job, service, now, message, delay_s)
    if refusal.final:
        invalid = refusal.code == "invalid_bundle"
        reason = Reason.INVALID_BUNDLE if invalid else Reason.AGENT_ERROR
        return ending.failed(job, service, now, reason, message)
    return ending.interrupted(job, service, now, Reason.AGENT_ERROR, message)
