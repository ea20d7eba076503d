"""Growing delays between repeats."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Backoff(Generic[Key]):
    """Delays in seconds that double with each failure of one key.

    Args:
        first_s: after the first failure.
        longest_s: no delay is longer.
        free: failures before the first delay.
    """

    def __init__(self, first_s: float, longest_s: float, free: int = 0) -> None:
        self._first_s, self._longest_s, self._free = first_s, longest_s, free
        self._failures: dict[Key, int] = {}

    def failed(self, key: Key) -> float:
        """Count a failure; how long to wait now."""
        count = self._failures.get(key, 0) - self._free
        self._failures[key] = count + self._free + 1
        if count < 0:
            return 0.0
        return min(self._first_s * 2.0 ** min(count, 60), self._longest_s)

    def succeeded(self, key: Key) -> None:
        self._failures.pop(key, None)
