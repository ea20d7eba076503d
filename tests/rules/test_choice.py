"""How much one user may have; which jobs go next, to which agent, and when one may be expected to
start: round-robin over users, first come first served within a user, never beyond a quota.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain import choose
from server.domain.allowances import Allowance, Allowances
from server.domain.choose import Candidate, Limit, Waiting
from server.domain.service import Service
from shared.clock import SECOND
from shared.units.rates import UNLIMITED, Rate, parse_rate
from tests.kit.each import each

USERS = st.sampled_from(["ann", "bob", "cy", "dee"])


def queue(*users: str) -> list[Waiting]:
    return [Waiting(number, user) for number, user in enumerate(users, 1)]


@each(
    "users, held, service, chosen",
    [
        ("aaaaab", {}, Service("s", runs_per_user=5, max_runs=4), [1, 6, 2, 3]),
        ("aba", {}, Service("s"), [1, 2, 3]),
        ("aabb", {"a": 1, "c": 1}, Service("s", runs_per_user=2, max_runs=3), [1]),
    ],
)
def test_a_flood_of_one_user_does_not_hold_up_another(users, held, service, chosen):
    free = service.max_runs - sum(held.values())
    found = choose.pick(queue(*users), held, service, free)
    assert [one.job_id for one in found] == chosen


@given(
    st.lists(USERS, max_size=30),
    st.dictionaries(USERS, st.integers(0, 6)),
    st.integers(1, 4),
    st.integers(1, 8),
)
def test_no_quota_is_exceeded_and_no_free_slot_is_wasted(users, held, per_user, most):
    service = Service("s", runs_per_user=per_user, max_runs=most)
    free = max(0, most - sum(held.values()))
    chosen = choose.pick(queue(*users), held, service, free)
    given_out = Counter(waiting.user_id for waiting in chosen)
    assert all(count + held.get(user, 0) <= per_user for user, count in given_out.items())
    assert len(chosen) <= free
    if len(chosen) < free:
        for user, waiting in Counter(users).items():
            room = max(0, per_user - held.get(user, 0))
            assert given_out[user] == min(waiting, room)
    assert len({waiting.job_id for waiting in chosen}) == len(chosen)


A, B, SMALL, BIG = Candidate("a", 4), Candidate("b", 4), Candidate("small", 1), Candidate("big", 8)
UNBOUNDED, TRIED = Candidate("a", None), Candidate("a", 8, most=1)


@each(
    "candidates, held, jobs, names",
    [
        ([A, B], {}, 8, "abababab"),
        ([A, B], {"a": 2}, 4, "bbab"),
        # The smallest share of slots in use is next, and none gets too many.
        ([SMALL, BIG], {}, 100, ["big", "small", *["big"] * 7]),
        ([SMALL, BIG], {"big": 5}, 100, ["small", "big", "big", "big"]),
        ([B, BIG], {"b": 2, "big": 3}, 1, ["big"]),
        ([SMALL, BIG], {"small": 3, "big": 9}, 100, []),
        ([UNBOUNDED], {"a": 10_000}, 3, "aaa"),
        # One that does not say counts as one slot more than it has jobs.
        ([UNBOUNDED, B], {"a": 1, "b": 3}, 2, "aa"),
        # One that is tried out gets no more than it may get now, or have of the service.
        ([TRIED, Candidate("b", 2)], {"a": 1}, 9, "bab"),
        ([TRIED], {"a": 4}, 9, "a"),
        ([Candidate("a", 8, max_runs=2)], {}, 9, "aa"),
        ([Candidate("a", 1, prefetch=1)], {}, 9, "aa"),
    ],
)
def test_the_least_busy_agent_gets_the_next_job(candidates, held, jobs, names):
    assert [one.name for one in choose.place(candidates, held, [1] * jobs)] == [*names]


PACKED = [
    (True, 0.0, [10] * 99, 20), (False, 0.0, [10] * 99, 2), (True, 0.0, [1] * 99, 2),
    (True, 1.0, [1, *[10] * 99], 1), (True, 1.9, [10] * 99, 1),
]  # fmt: skip


@each("packs, held, tasks, placed", PACKED)
def test_tasks_that_share_a_sandbox_take_a_part_of_a_slot(packs, held, tasks, placed):
    agents, load = [Candidate("a", 2, packs=packs)], {"a": held}
    assert len(choose.place(agents, load, tasks)) == placed
    assert choose.room(agents, load, max(tasks), {}, 99) >= placed


@given(
    st.lists(st.tuples(st.none() | st.integers(1, 4), *[st.integers(0, 4)] * 3), max_size=6),
    st.lists(st.integers(0, 6), min_size=6, max_size=6),
    st.integers(0, 9),
)
def test_there_is_room_for_as_many_jobs_as_are_placed(given, held, most):
    agents = [
        Candidate(str(n), slots, prefetch, now or None, runs or None)
        for n, (slots, prefetch, now, runs) in enumerate(given)
    ]
    load = {str(n): jobs for n, jobs in enumerate(held)}
    placed = choose.place(agents, load, [1] * most, load)
    assert choose.room(agents, load, 1, load, most) == len(placed)


@each(
    "limits, wait",
    [
        ([Limit(slots=1, used=1, before=0)], 60.0),
        ([Limit(1, 1, 2)], 180.0),
        ([Limit(4, 4, 0)], 15.0),
        ([Limit(4, 4, 7)], 120.0),
        ([Limit(4, 1, 2)], 0.0),
        ([Limit(4, 1, 3)], 15.0),
        ([Limit(2, 5, 0)], 120.0),  # it was lowered: some have to end before there is one free
        *(([Limit(slots, 0, 0)], None) for slots in (0, -1)),
        # The limit that takes longest counts.
        ([Limit(2, 2, 1), Limit(10, 10, 39)], 240.0),
        ([Limit(10, 10, 39), Limit(2, 2, 1)], 240.0),
        ([Limit(2, 2, 1), Limit(0, 0, 0)], None),
    ],
)
def test_a_job_waits_for_as_many_ends_as_there_are_jobs_before_it(limits, wait):
    assert choose.wait_s(60.0, limits) == wait


def test_what_is_more_than_a_week_away_is_not_said_and_users_take_turns() -> None:
    assert choose.wait_s(choose.MOST_S, [Limit(1, 1, 0)]) == choose.MOST_S
    assert choose.wait_s(choose.MOST_S, [Limit(1, 1, 1)]) is None
    assert choose.before_in_service(1, []) == 0
    assert choose.before_in_service(4, []) == 3
    assert choose.before_in_service(1, [5, 9]) == 1, "half of the other users are before it"
    assert choose.before_in_service(3, [1, 2, 9]) == 2 + 1 + 2 + 2.5


@given(st.integers(0, 2**52), st.floats(0, choose.MOST_S))
def test_the_time_is_rounded_up_and_not_more_exact_than_an_estimate(now: int, wait: float) -> None:
    at = choose.rounded_at(now, wait)
    later_s = (at - now) / SECOND - wait
    step = 60 if wait < 600 else 300 if wait < 3_600.0 else 3_600
    assert -0.001 <= later_s <= step
    assert at % (step * SECOND) == 0


def test_a_service_has_the_nearest_exceptions() -> None:
    ann, cy = Allowance(runs={"": 9}, queued={"s": 0}), Allowance(stored=5)
    bob = Allowance(runs={"s": 3, "": 4}, queued={"t": 7})
    allowances = Allowances(Allowance(), {"ann": ann, "bob": bob, "cy": cy})
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
