"""How many requests each caller may send."""

from __future__ import annotations

import pytest

from shared.http import rate_limits
from shared.http.rate_limits import RateLimits
from shared.http.refusals import Denied
from shared.principals import Principal, Role
from shared.units.rates import UNLIMITED, Rate
from tests.kit.clock import SimClock


def limits(rate: Rate, clock: SimClock) -> RateLimits:
    return RateLimits(lambda principal: (principal.name, rate), clock)


def taken(of: RateLimits, name: str = "ann", most: int = 100) -> int:
    """How many requests are let through, one after the other at the same moment."""
    caller = Principal(name, Role.PORTAL)
    for number in range(most):
        try:
            of.take(caller)
        except Denied:
            return number
    return most


async def test_as_many_at_once_as_the_number_and_then_as_the_rate_brings() -> None:
    clock = SimClock()
    of = limits(Rate(6, "m"), clock)
    assert taken(of) == 6
    with pytest.raises(Denied) as refused:
        of.take(Principal("ann", Role.PORTAL))
    assert refused.value.headers == {"Retry-After": "10"}
    assert (refused.value.status, refused.value.code) == (429, "rate_limited")
    await clock.advance(9.0)
    with pytest.raises(Denied) as refused:
        of.take(Principal("ann", Role.PORTAL))
    assert refused.value.headers == {"Retry-After": "1"}
    await clock.advance(1.0)
    assert taken(of) == 1
    await clock.advance(3_600.0)
    assert taken(of) == 6


async def test_each_caller_has_its_own() -> None:
    of = limits(Rate(3, "s"), SimClock())
    assert [taken(of, name) for name in ("ann", "bob", "ann")] == [3, 3, 0]
    assert taken(limits(UNLIMITED, SimClock())) == 100


async def test_only_so_many_callers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "_REMEMBERED", 5)
    of = limits(Rate(2, "s"), SimClock())
    for number in range(50):
        assert taken(of, f"caller-{number}") == 2
    assert len(of._buckets._buckets) == 5
    assert taken(of, "caller-49") == 0
