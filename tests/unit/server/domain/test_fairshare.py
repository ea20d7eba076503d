"""Round-robin over users, first come first served within a user, never beyond a quota."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from server.domain.choose import Waiting, pick
from server.domain.service import Service

USERS = st.sampled_from(["ann", "bob", "cy", "dee"])


def queue(*users: str) -> list[Waiting]:
    return [Waiting(number, user) for number, user in enumerate(users, 1)]


def test_a_flood_of_one_user_does_not_hold_up_another() -> None:
    service = Service("s", runs_per_user=5, max_runs=4)
    chosen = pick(queue("ann", "ann", "ann", "ann", "ann", "bob"), {}, service)
    assert [waiting.user_id for waiting in chosen] == ["ann", "bob", "ann", "ann"]


def test_within_a_user_the_oldest_is_first() -> None:
    chosen = pick(queue("ann", "bob", "ann"), {}, Service("s"))
    assert [waiting.job_id for waiting in chosen if waiting.user_id == "ann"] == [1, 3]


def test_slots_in_use_count_against_both_quotas() -> None:
    service = Service("s", runs_per_user=2, max_runs=3)
    chosen = pick(queue("ann", "ann", "bob", "bob"), {"ann": 1, "cy": 1}, service)
    assert [waiting.user_id for waiting in chosen] == ["ann"]


@given(
    st.lists(USERS, max_size=30),
    st.dictionaries(USERS, st.integers(0, 6)),
    st.integers(1, 4),
    st.integers(1, 8),
)
def test_no_quota_is_exceeded_and_no_free_slot_is_wasted(
    users: list[str], held: dict[str, int], per_user: int, most: int
) -> None:
    service = Service("s", runs_per_user=per_user, max_runs=most)
    chosen = pick(queue(*users), held, service)
    given_out = Counter(waiting.user_id for waiting in chosen)
    for user, count in given_out.items():
        assert count + held.get(user, 0) <= per_user
    free = max(0, most - sum(held.values()))
    assert len(chosen) <= free
    if len(chosen) < free:
        for user, waiting in Counter(users).items():
            room = max(0, per_user - held.get(user, 0))
            assert given_out[user] == min(waiting, room)
    ids = [waiting.job_id for waiting in chosen]
    assert len(ids) == len(set(ids))
