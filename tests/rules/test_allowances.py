"""How much one user may have."""

from __future__ import annotations

import pytest

from server.domain.allowances import (
    DAY,
    Allowance,
    Allowances,
    DayUsed,
    OverDay,
    over_day,
)
from server.domain.service import Service
from shared.clock import SECOND
from shared.units.rates import UNLIMITED, Rate, parse_rate

NOON = 20_000 * DAY + DAY // 2


def test_what_a_day_allows_is_refused_by_what_helps() -> None:
    assert over_day("ann", 10**9, 1, 0, NOON) is None
    assert over_day("ann", 400, 600, 1_000, NOON) is None
    used = over_day("ann", 401, 600, 1_000, NOON)
    assert isinstance(used, DayUsed)
    assert used.retry_after_s == DAY // 2 // SECOND
    assert "so 599 B is left" in str(used)
    assert isinstance(over_day("ann", 0, 1_001, 1_000, NOON), OverDay)
    late = over_day("ann", 1, 1_000, 1_000, NOON + DAY // 2 - 1)
    assert isinstance(late, DayUsed)
    assert late.retry_after_s == 1


def test_a_service_has_the_nearest_exceptions() -> None:
    allowances = Allowances(
        Allowance(),
        {
            "ann": Allowance(runs={"": 9}, queued={"s": 0}),
            "bob": Allowance(runs={"s": 3, "": 4}, queued={"t": 7}),
            "cy": Allowance(stored=5),
        },
    )
    service = allowances.applied(Service("s", runs_per_user=1, queued_per_user=2))
    assert [service.runs_of(user) for user in ("ann", "bob", "cy", "dee")] == [9, 3, 1, 1]
    assert [service.queued_of(user) for user in ("ann", "bob", "cy")] == [0, 2, 2]
    assert allowances.applied(Service("other")).runs_of("bob") == 4


def test_rates_are_read_as_people_write_them() -> None:
    assert parse_rate("50/s") == Rate(50, "s")
    assert parse_rate(" 300 / m ").per_s == 5.0
    assert parse_rate("off") == UNLIMITED
    assert [str(parse_rate(text)) for text in ("1000/H", "OFF")] == ["1000/h", "off"]
    for wrong in ("", "50", "0/s", "50/d", "-1/s", "1.5/s", "9" * 40 + "/s"):
        with pytest.raises(ValueError, match=r"rate|longer"):
            parse_rate(wrong)
