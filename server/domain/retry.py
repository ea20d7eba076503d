"""Whether the failures of a bundle are tried again, how often, when, and what counts it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, TypeAlias, TypeVar

from shared.units.durations import say_duration
from shared.wire import Reason, RetryLater

Uniform: TypeAlias = Callable[[float, float], float]
"""A random number between two bounds, as :func:`random.uniform` gives it."""
_INFRA_DELAYS_S: Final = (0.0, 1.0, 5.0, 15.0, 60.0)
_RESUBMIT_S: Final = 1.0
"""An agent that says again and again that it stops does not make the server spin."""
_LONGEST_LATER_S: Final = 86_400.0
RETRIED: Final = (Reason.EXIT_CODE, Reason.TIMEOUT, Reason.HEARTBEAT_TIMEOUT)
"""What a bundle does wrong, and may do right the next time: tried again where nobody says what."""
NEVER: Final = frozenset(
    {
        Reason.INVALID_BUNDLE,
        Reason.NOT_OFFERED,
        Reason.QUEUE_TIMEOUT,
        Reason.CHILD_FAILED,
        Reason.DEPENDENCY_FAILED,
    }
)
"""It would be the same next time, so it cannot be asked for."""
_KEYS_KEPT: Final = 10_000
_REASONS: Final = frozenset(Reason) | {f"exit:{code}" for code in range(1, 256)}


class BackoffKind(StrEnum):
    """How the delay grows with each retry."""

    CONSTANT = "constant"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    EXPONENTIAL_JITTER = "exponential_jitter"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Of a service, or of a job whose upload asked for another one."""

    retries: int = 0
    delays_s: tuple[float, ...] = (10.0, 60.0, 300.0)
    """Seconds before each retry; the last one repeats. Not used with a ``backoff``."""
    backoff: BackoffKind | None = None
    delay_s: float = 30.0
    """The base of the backoff."""
    max_delay_s: float = 3_600.0
    retry_on: frozenset[str] = frozenset(RETRIED)
    """Reason codes, and exit codes as "exit:3"."""
    no_retry_on: frozenset[str] = frozenset()
    """These are not retried, whatever ``retry_on`` says."""


def check_retry_reasons(texts: Iterable[str], *, retried: bool) -> None:
    """Refuse what is neither a reason code nor an exit code of a failure, as in "exit:3". Raises
    ValueError. ``retried``: whether these are to be tried again, which some reasons never are.
    """
    for text in texts:
        if text not in _REASONS:
            known = ", ".join(Reason)
            raise ValueError(
                f"{text[:64]!r} is neither an exit code from exit:1 to exit:255 nor one of {known}"
            )
        if retried and text in NEVER:
            raise ValueError(f"{text!r} is never tried again: nothing would be different")


def left_out(usual: frozenset[str], asked: frozenset[str]) -> list[str]:
    """What is not tried again with one list of reasons, and would be with another."""
    missing = usual - asked
    if Reason.EXIT_CODE in asked:
        missing = frozenset(one for one in missing if not one.startswith("exit:"))
    some = any(one.startswith("exit:") for one in asked)
    return sorted(
        "other exit codes" if some and one == Reason.EXIT_CODE else one for one in missing
    )


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


def after_interruption(used: int, most: int) -> Retry | None:
    """The attempt died through no fault of the bundle. None: the budget ``infra_retries`` is used
    up.
    """
    if used >= most:
        return None
    delay, number = _INFRA_DELAYS_S[min(used, len(_INFRA_DELAYS_S) - 1)], used + 1
    fields = {"interruption": number, "infra_retries": most}
    return Retry(delay, {"infra_used": number}, "job.interrupted", _again(delay), fields)


def after_failure(
    rules: RetryPolicy, used: int, reason: Reason, exit_code: int | None, uniform: Uniform
) -> Retry | None:
    """The bundle failed. None: it is not to be retried for this reason, or has no retries left."""
    names = {str(reason), f"exit:{exit_code}"}
    if used >= rules.retries or not names & rules.retry_on or names & rules.no_retry_on:
        return None
    delay, number = delay_s(rules, used, uniform), used + 1
    note = f"{_again(delay)}, {_retries(rules.retries - number)} left after that"
    fields = {"retry": number, "retries": rules.retries}
    return Retry(delay, {"retries_used": number}, "job.retry", note, fields)


def why_not(rules: RetryPolicy, used: int, reason: Reason | None, exit_code: int | None) -> str:
    """Behind the message of a failure that is not tried again; empty: it had no retries left."""
    names, left = {str(reason), f"exit:{exit_code}"}, rules.retries - used
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


def later(used: int, most: int, delay_s: float, asked: RetryLater) -> Retry | None:
    """The bundle asked to be tried later. None: it has asked as often as its service allows.
    ``delay_s``: where it does not say when.
    """
    if used >= most:
        return None
    delay = min(delay_s if asked.after_s is None else asked.after_s, _LONGEST_LATER_S)
    count, fields = {"later_used": used + 1}, {"later": used + 1, "retry_later_limit": most}
    return Retry(delay, count, "job.retry_later", _again(delay), fields, waits_on=True)


def resubmitted() -> Retry:
    """Its agent was stopped, and its service wants such a job tried again: nothing counts it."""
    return Retry(_RESUBMIT_S, {}, "job.resubmitted", _again(0.0))


def _retries(count: int) -> str:
    return "1 retry" if count == 1 else f"{count or 'no'} retries"


def _again(delay_s: float) -> str:
    return "; it will be tried again" + (f" in {say_duration(delay_s)}" if delay_s else "")


def delay_s(rules: RetryPolicy, used: int, uniform: Uniform) -> float:
    """Seconds until the next retry. ``used``: retries before it, n in d, d·n, d·2ⁿ and uniform(0,
    d·2ⁿ); the linear delay of the first retry is d.
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


Key = TypeVar("Key", bound=Hashable)


class Backoff(Generic[Key]):
    """Delays in seconds that double with each failure of one key.

    Args:
        first_s: after the first failure.
        longest_s: no delay is longer.
        free: failures before the first delay.

    Of very many keys, those are forgotten whose last failure is longest ago.
    """

    def __init__(self, first_s: float, longest_s: float, free: int = 0) -> None:
        self._first_s, self._longest_s, self._free = first_s, longest_s, free
        self._failures: dict[Key, int] = {}

    def failed(self, key: Key) -> float:
        """Count a failure; how long to wait now."""
        count = self._failures.pop(key, 0) - self._free
        self._failures[key] = count + self._free + 1
        if len(self._failures) > _KEYS_KEPT:
            del self._failures[next(iter(self._failures))]
        if count < 0:
            return 0.0
        return min(self._first_s * 2.0 ** min(count, 60), self._longest_s)

    def succeeded(self, key: Key) -> None:
        self._failures.pop(key, None)
