"""How many requests each caller may send."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from shared.clock import Clock
from shared.http.refusals import Denied
from shared.principals import Principal
from shared.units.rates import Rate

_REMEMBERED: Final = 10_000
"""Callers; the one who was away for the longest time is forgotten for the next one."""
CODE: Final = "rate_limited"


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Buckets:
    """A token bucket for each caller: as many at once as the rate's number, and as many more as the
    rate brings.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, caller: str, rate: Rate) -> int:
        """Seconds until one may be taken; 0: now."""
        left = self._filled(caller, rate).left
        return 0 if left >= 1 else max(1, math.ceil((1 - left) / rate.per_s))

    def take(self, caller: str, rate: Rate) -> None:
        """Take one, which is there."""
        self._filled(caller, rate).left -= 1

    def _filled(self, caller: str, rate: Rate) -> _Bucket:
        now = self._clock.monotonic()
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = _Bucket(rate.number, now)
            if len(self._buckets) > _REMEMBERED:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(caller)
        bucket.left = min(rate.number, bucket.left + (now - bucket.at) * rate.per_s)
        bucket.at = now
        return bucket


class RateLimits:
    """How many requests each caller may send.

    Args:
        of: whose bucket a request is taken from, and the rate; with number 0 there is no limit.
    """

    def __init__(self, of: Callable[[Principal], tuple[str, Rate]], clock: Clock) -> None:
        self._of, self._buckets = of, Buckets(clock)

    def take(self, principal: Principal) -> None:
        """Count a request.

        Raises:
            Denied: there were too many; it is not counted.
        """
        caller, rate = self._of(principal)
        if not rate.number:
            return
        if wait_s := self._buckets.wait_s(caller, rate):
            raise Denied(
                HTTPStatus.TOO_MANY_REQUESTS,
                CODE,
                f"{principal.name} sends more requests than the {rate} that one caller may send "
                f"(rate_limit): try again in {wait_s} s",
                {"Retry-After": str(wait_s)},
            )
        self._buckets.take(caller, rate)
