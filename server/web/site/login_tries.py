"""How often somebody may try a wrong token."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from server.http.problems import Refusal
from shared.clock import Clock
from shared.http.rate_limits import CODE, Buckets
from shared.units.durations import say_duration
from shared.units.rates import Rate

_RATE: Final = Rate(10, "m")


class LoginTries:
    """Wrong tokens, by the address that they came from: of IPv6, its /64 network."""

    def __init__(self, clock: Clock) -> None:
        self._buckets = Buckets(clock)

    def check(self, address: str) -> None:
        """Raises Refusal: there were too many; the next token is not even looked at."""
        if wait_s := self._buckets.wait_s(address, _RATE):
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                CODE,
                f"too many wrong tokens came from {address}: "
                f"try again in {say_duration(float(wait_s))}",
                retry_after_s=wait_s,
            )

    def count(self, address: str) -> None:
        """Count a wrong one."""
        self._buckets.take(address, _RATE)
