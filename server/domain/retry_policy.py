"""How often, when and for what the failures of a bundle are tried again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from shared.wire import Reason

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
    """Refuse what is neither a reason code nor an exit code of a failure, as in "exit:3".

    Args:
        retried: whether these are to be tried again, which some reasons never are.

    Raises:
        ValueError
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
