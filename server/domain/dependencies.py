"""Jobs that wait for other jobs.

A job names those that it waits for when it is uploaded, and only jobs that are there already can be
named. So each dependency leads from a job to one with a lower number, numbers are never given
again, and there is no cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.domain import ending
from server.domain.jobs import Job, Move
from server.domain.service import Service
from shared.clock import Micros
from shared.wire import JobState, Reason


@dataclass(frozen=True, slots=True)
class BrokenDependency:
    """A queued job, and the first job that it depends on that did not complete."""

    job: Job
    on_id: int
    on: Job | None
    """As it is now; None: it was deleted."""


def failed(broken: BrokenDependency, service: Service, now: Micros) -> Move:
    """The end of a job that can never start."""
    message = f"job {broken.on_id}, which it waits for, {_what_became_of(broken.on)}"
    return ending.failed(broken.job, service, now, Reason.DEPENDENCY_FAILED, message)


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
