"""Whether a job is tried again, when, and what counts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from server.domain.jobs import Job
from server.domain.retry_policy import NEVER, BackoffKind, RetryPolicy
from server.domain.service import Service
from shared.units.durations import say_duration
from shared.wire import Reason, RetryLater

Uniform: TypeAlias = Callable[[float, float], float]
"""A random number between two bounds, as :func:`random.uniform` gives it."""
_INFRA_DELAYS_S: Final = (0.0, 1.0, 5.0, 15.0, 60.0)
_RESUBMIT_S: Final = 1.0
"""An agent that says again and again that it stops does not make the server spin."""
_LONGEST_LATER_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again."""

    delay_s: float
    used: Mapping[str, int] = field(default_factory=dict)
    """What counts it: field of the job -> how often by now."""
    event: str = ""
    note: str = ""
    """For people, behind what happened."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """For programs."""
    waits_on: bool = False
    """Its queue timeout goes on from when it was queued first."""


def policy(job: Job, service: Service) -> RetryPolicy:
    """The job's own, or the service's where its upload asked for none."""
    return job.retry or service.retry


def after_interruption(job: Job, service: Service) -> Retry | None:
    """The attempt died through no fault of the bundle. None: the budget ``infra_retries`` is used
    up.
    """
    if job.infra_used >= service.infra_retries:
        return None
    delay = _INFRA_DELAYS_S[min(job.infra_used, len(_INFRA_DELAYS_S) - 1)]
    return Retry(
        delay,
        {"infra_used": job.infra_used + 1},
        "job.interrupted",
        _again(delay),
        {"interruption": job.infra_used + 1, "infra_retries": service.infra_retries},
    )


def after_failure(
    job: Job, service: Service, reason: Reason, exit_code: int | None, uniform: Uniform
) -> Retry | None:
    """The bundle failed. None: it is not to be retried for this reason, or has no retries left."""
    rules = policy(job, service)
    names = {str(reason), f"exit:{exit_code}"}
    if job.retries_used >= rules.retries or not names & rules.retry_on or names & rules.no_retry_on:
        return None
    delay, number = delay_s(rules, job.retries_used, uniform), job.retries_used + 1
    left = rules.retries - number
    return Retry(
        delay,
        {"retries_used": number},
        "job.retry",
        f"{_again(delay)}, {_retries(left)} left after that",
        {"retry": number, "retries": rules.retries},
    )


def why_not(job: Job, service: Service, reason: Reason | None, exit_code: int | None) -> str:
    """Behind the message of a failure that is not tried again; empty: it had no retries left."""
    if reason is Reason.SHUTDOWN and service.on_shutdown == "stop":
        return f"; it is not tried again, as service {service.name} says (on_shutdown)"
    rules = policy(job, service)
    names, left = {str(reason), f"exit:{exit_code}"}, rules.retries - job.retries_used
    if left <= 0:
        return ""
    if reason in NEVER:
        why = f"{reason} would be the same next time"
    elif excepted := names & rules.no_retry_on:
        why = f"no_retry_on has {', '.join(sorted(excepted))}"
    elif not names & rules.retry_on:
        why = f"retry_on has only {', '.join(sorted(rules.retry_on)) or 'nothing'}"
    else:
        why = "retries are not for this"
    return f"; it has {_retries(left)} left, but {why}"


def later(job: Job, service: Service, asked: RetryLater) -> Retry | None:
    """The bundle asked to be tried later. None: it has asked as often as its service allows."""
    if job.later_used >= service.retry_later_limit:
        return None
    delay = service.retry_later_delay_s if asked.after_s is None else asked.after_s
    delay = min(delay, _LONGEST_LATER_S)
    return Retry(
        delay,
        {"later_used": job.later_used + 1},
        "job.retry_later",
        _again(delay),
        {"later": job.later_used + 1, "retry_later_limit": service.retry_later_limit},
        waits_on=True,
    )


def resubmitted() -> Retry:
    """Its agent was stopped, and its service wants such a job tried again: nothing counts it."""
    return Retry(_RESUBMIT_S, {}, "job.resubmitted", _again(0.0))


def _retries(count: int) -> str:
    return "1 retry" if count == 1 else f"{count or 'no'} retries"


def _again(delay_s: float) -> str:
    return "; it will be tried again" + (f" in {say_duration(delay_s)}" if delay_s else "")


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
        BackoffKind.CONSTANT: base,
        BackoffKind.LINEAR: base * (used + 1),
        BackoffKind.EXPONENTIAL: doubled,
        BackoffKind.EXPONENTIAL_JITTER: min(doubled, most),
    }[rules.backoff]
    if rules.backoff is BackoffKind.EXPONENTIAL_JITTER:
        delay = uniform(0.0, delay)
    return min(delay, most)
