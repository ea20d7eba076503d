"""When a queued job probably starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.choose import MOST_S, Limit, before_in_service, rounded_at, wait_s
from shared.clock import SECOND

HOUR = 3_600.0


@pytest.mark.parametrize(
    ("limit", "wait"),
    [
        (Limit(slots=1, used=1, before=0), 60.0),
        (Limit(slots=1, used=1, before=2), 180.0),
        (Limit(slots=4, used=4, before=0), 15.0),
        (Limit(slots=4, used=4, before=7), 120.0),
        (Limit(slots=4, used=1, before=2), 0.0),
        (Limit(slots=4, used=1, before=3), 15.0),
        # It was lowered: some have to end before there is one free.
        (Limit(slots=2, used=5, before=0), 120.0),
        (Limit(slots=0, used=0, before=0), None),
        (Limit(slots=-1, used=0, before=0), None),
    ],
)
def test_a_job_waits_for_as_many_ends_as_there_are_jobs_before_it(limit, wait):
    assert wait_s(60.0, [limit]) == wait


def test_the_limit_that_takes_longest_counts():
    mine, service = Limit(2, 2, 1), Limit(10, 10, 39)
    assert wait_s(60.0, [mine, service]) == wait_s(60.0, [service, mine]) == 240.0
    assert wait_s(60.0, [mine, Limit(0, 0, 0)]) is None


def test_what_is_more_than_a_week_away_is_not_said():
    assert wait_s(MOST_S, [Limit(1, 1, 0)]) == MOST_S
    assert wait_s(MOST_S, [Limit(1, 1, 1)]) is None


def test_users_take_turns():
    assert before_in_service(1, []) == 0
    assert before_in_service(4, []) == 3
    assert before_in_service(1, [5, 9]) == 1, "half of the other users are before it"
    assert before_in_service(3, [1, 2, 9]) == 2 + 1 + 2 + 2.5


@given(st.integers(0, 2**52), st.floats(0, MOST_S))
def test_the_time_is_rounded_up_and_not_more_exact_than_an_estimate(now, wait):
    at = rounded_at(now, wait)
    later_s = (at - now) / SECOND - wait
    step = 60 if wait < 600 else 300 if wait < HOUR else 3_600
    assert -0.001 <= later_s <= step
    assert at % (step * SECOND) == 0
