"""Whether an attempt that failed is followed by another, and when."""

from __future__ import annotations

from dataclasses import dataclass

from server.domain.jobs import Job
from server.domain.service import Service
from shared.wire import Reason

_INFRA_DELAYS_S = (0.0, 1.0, 5.0, 15.0, 60.0)


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again."""

    delay_s: float
    infra_used: int
    retries_used: int


def after_interruption(job: Job, service: Service) -> Retry | None:
    """The attempt died through no fault of the bundle. None: the budget ``infra_retries`` is used
    up.
    """
    if job.infra_used >= service.infra_retries:
        return None
    delay = _INFRA_DELAYS_S[min(job.infra_used, len(_INFRA_DELAYS_S) - 1)]
    return Retry(delay, job.infra_used + 1, job.retries_used)


def after_failure(
    job: Job, service: Service, reason: Reason, exit_code: int | None
) -> Retry | None:
    """The bundle failed. None: it is not to be retried for this reason, or has no retries left."""
    names = {str(reason), f"exit:{exit_code}"}
    if job.retries_used >= service.retries or not names & service.retry_on:
        return None
    delays = service.retry_delays_s or (0.0,)
    delay = delays[min(job.retries_used, len(delays) - 1)]
    return Retry(delay, job.infra_used, job.retries_used + 1)
