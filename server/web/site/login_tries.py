"""How often somebody may try a wrong token, and how many sessions somebody may begin."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from server.http.problems import Refusal
from shared.clock import Clock
from shared.http.rate_limits import CODE, Buckets
from shared.units.durations import say_duration
from shared.units.rates import Rate

_RATE: Final = Rate(10, "m")
_SESSIONS: Final = Rate(100, "h")
"""Of one principal. Rows of ended ones stay until they expire."""


class LoginTries:
    """Wrong tokens, by the address that they came from: of IPv6, its /64 network."""

    def __init__(self, clock: Clock) -> None:
        self._buckets = Buckets(clock)
        self._begun = Buckets(clock)

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

    def begin(self, principal: str) -> None:
        """Count a session that begins. Raises Refusal: there were too many of the principal."""
        if wait_s := self._begun.wait_s(principal, _SESSIONS):
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                CODE,
                f"{principal} has logged in too often: "
                f"try again in {say_duration(float(wait_s))}, or use a session that you have",
                retry_after_s=wait_s,
            )
        self._begun.take(principal, _SESSIONS)
