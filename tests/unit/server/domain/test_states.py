"""The table, and what is derived from it."""

from __future__ import annotations

import pytest

from server.domain import states
from server.domain.errors import IllegalTransition
from server.domain.jobs import Move
from shared.wire import JobState

S = JobState


def test_every_state_has_a_row_and_is_reached() -> None:
    assert set(states.NEXT) == set(S)
    reached = {states.FIRST} | {to for after in states.NEXT.values() for to in after}
    assert reached == set(S)


def test_the_sets_are_what_the_design_says() -> None:
    assert {S.COMPLETED, S.FAILED, S.CANCELLED, S.CLEANED} == states.ENDED
    assert {S.PROCESSING, S.SUBMITTED, S.RUNNING, S.UNKNOWN} == states.HOLDS_SLOT
    assert {S.SUBMITTED, S.RUNNING, S.UNKNOWN} == states.AT_AGENT


def test_a_job_that_completed_never_runs_again() -> None:
    seen, todo = set(), [S.COMPLETED]
    while todo:
        state = todo.pop()
        seen.add(state)
        todo += states.NEXT[state] - seen
    assert seen == {S.COMPLETED, S.CLEANED}


@pytest.mark.parametrize("before", list(S))
@pytest.mark.parametrize("to", [S.SUBMITTED, S.RUNNING])
def test_the_way_of_a_late_report_is_a_path_through_the_table(before: S, to: S) -> None:
    for step in states.states_between(before, to):
        assert step in states.NEXT[before]
        before = step


def test_a_report_that_skipped_states_names_them() -> None:
    assert states.states_between(S.PROCESSING, S.RUNNING) == (S.SUBMITTED, S.RUNNING)
    assert states.states_between(S.RUNNING, S.SUBMITTED) == ()
    assert states.states_between(S.QUEUED, S.RUNNING) == ()


def test_a_move_that_the_table_lacks_is_refused_when_it_is_made() -> None:
    with pytest.raises(IllegalTransition, match="job 17 is Completed, so it cannot become Queued"):
        Move(17, 1, S.COMPLETED, S.QUEUED, 0, "")
