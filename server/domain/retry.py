"""Whether a job is tried again, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from server.domain.jobs import Job
from server.domain.retry_policy import Backoff, RetryPolicy
from server.domain.service import Service
from shared.wire import Reason

Uniform: TypeAlias = Callable[[float, float], float]
"""A random number between two bounds, as :func:`random.uniform` gives it."""
_INFRA_DELAYS_S: Final = (0.0, 1.0, 5.0, 15.0, 60.0)


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again."""

    delay_s: float
    infra_used: int
    retries_used: int


def policy(job: Job, service: Service) -> RetryPolicy:
    """The job's own, or the service's where an older release queued it."""
    return job.retry or service.retry


def after_interruption(job: Job, service: Service) -> Retry | None:
    """The attempt died through no fault of the bundle. None: the budget ``infra_retries`` is used
    up.
    """
    if job.infra_used >= service.infra_retries:
        return None
    delay = _INFRA_DELAYS_S[min(job.infra_used, len(_INFRA_DELAYS_S) - 1)]
    return Retry(delay, job.infra_used + 1, job.retries_used)


def after_failure(
    job: Job, service: Service, reason: Reason, exit_code: int | None, uniform: Uniform
) -> Retry | None:
    """The bundle failed. None: it is not to be retried for this reason, or has no retries left."""
    rules = policy(job, service)
    names = {str(reason), f"exit:{exit_code}"}
    if job.retries_used >= rules.retries or not names & rules.retry_on or names & rules.no_retry_on:
        return None
    return Retry(delay_s(rules, job.retries_used, uniform), job.infra_used, job.retries_used + 1)


def delay_s(rules: RetryPolicy, used: int, uniform: Uniform) -> float:
    """Seconds until the next retry.

    Args:
        used: retries before it, n in d, d·n, d·2ⁿ and uniform(0, d·2ⁿ); the linear delay of the
            first retry is d.
    """
    if rules.backoff is None:
        delays = rules.delays_s or (0.0,)
        return delays[min(used, len(delays) - 1)]
    base, most = rules.delay_s, rules.max_delay_s
    doubled = base * 2.0 ** min(used, 60)
    delay = {
        Backoff.CONSTANT: base,
        Backoff.LINEAR: base * (used + 1),
        Backoff.EXPONENTIAL: doubled,
        Backoff.EXPONENTIAL_JITTER: min(doubled, most),
    }[rules.backoff]
    if rules.backoff is Backoff.EXPONENTIAL_JITTER:
        delay = uniform(0.0, delay)
    return min(delay, most)
