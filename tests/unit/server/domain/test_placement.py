"""Which agent gets the next job."""

from __future__ import annotations

from server.domain.choose import Candidate, place


def names(candidates: list[Candidate], held: dict[str, int], jobs: int) -> list[str]:
    return [candidate.name for candidate in place(candidates, held, [1] * jobs)]


def test_two_equal_agents_share_the_load() -> None:
    candidates = [Candidate("a", 4), Candidate("b", 4)]
    assert names(candidates, {}, 8) == ["a", "b"] * 4
    assert names(candidates, {"a": 2}, 4) == ["b", "b", "a", "b"]


def test_the_smallest_share_of_slots_in_use_gets_the_next_job_and_none_gets_too_many() -> None:
    candidates = [Candidate("small", 1), Candidate("big", 8)]
    order = names(candidates, {}, 100)
    assert (order.count("small"), order.count("big")) == (1, 8)
    assert order[:3] == ["big", "small", "big"]
    assert names(candidates, {"big": 5}, 100) == ["small", "big", "big", "big"]
    assert names(candidates, {"small": 3, "big": 9}, 100) == []


def test_an_agent_that_names_no_slots_is_not_bounded() -> None:
    assert names([Candidate("a", None)], {"a": 10_000}, 3) == ["a"] * 3


def test_an_agent_that_is_tried_out_gets_no_more_than_it_may_get_now() -> None:
    candidates = [Candidate("a", 8, most=1), Candidate("b", 2)]
    assert names(candidates, {"a": 1}, 9) == ["b", "a", "b"]
    assert names(candidates[:1], {"a": 4}, 9) == ["a"]


def test_what_an_agent_does_not_say_counts_as_one_slot_more_than_it_has_jobs() -> None:
    candidates = [Candidate("unbounded", None), Candidate("bounded", 4)]
    assert names(candidates, {"unbounded": 1, "bounded": 3}, 2) == ["unbounded", "unbounded"]


def test_tasks_that_share_a_sandbox_start_take_a_part_of_a_slot_where_the_agent_packs() -> None:
    packs, plain = Candidate("packs", 2, packs=True), Candidate("plain", 2)
    assert len(place([packs], {}, [10] * 99)) == 20
    assert len(place([plain], {}, [10] * 99)) == 2
    assert len(place([packs], {}, [1] * 99)) == 2
    assert len(place([packs], {"packs": 1.0}, [1, *[10] * 99])) == 1
    assert len(place([packs], {"packs": 1.9}, [10] * 99)) == 1
