"""How often, when and for what the failures of a bundle are tried again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shared.wire import Reason

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
    retry_on: frozenset[str] = frozenset()
    """Reason codes, and exit codes as "exit:3"."""
    no_retry_on: frozenset[str] = frozenset()
    """These are not retried, whatever ``retry_on`` says."""


def is_retry_reason(text: str) -> bool:
    """Whether it is a reason code, or an exit code of a failure, 1 to 255, as "exit:3"."""
    return text in _REASONS
