"""The table, and what is derived from it."""

from __future__ import annotations

import pytest

from server.domain import states
from server.domain.errors import IllegalTransition
from server.domain.jobs import Move
from shared.wire import JobState
from tests.kit.each import each


def test_every_state_has_a_row_and_is_reached() -> None:
    assert set(states.NEXT) == set(JobState)
    reached = {states.FIRST} | {to for after in states.NEXT.values() for to in after}
    assert reached == set(JobState)


def test_the_sets_are_what_the_design_says() -> None:
    assert {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.CLEANED,
    } == states.ENDED
    assert {
        JobState.PROCESSING,
        JobState.SUBMITTED,
        JobState.RUNNING,
        JobState.UNKNOWN,
    } == states.HOLDS_SLOT
    assert {JobState.SUBMITTED, JobState.RUNNING, JobState.UNKNOWN} == states.AT_AGENT


def test_a_job_that_completed_does_not_run_again() -> None:
    assert states.NEXT[JobState.COMPLETED] == {JobState.CLEANED}
    assert {JobState.FAILED, JobState.CANCELLED} == states.RETRIED_BY_HAND
    assert states.NEXT[JobState.CLEANED] == frozenset()


@each("before", list(JobState))
@each("to", [JobState.SUBMITTED, JobState.RUNNING])
def test_the_way_of_a_late_report_is_a_path_through_the_table(
    before: JobState, to: JobState
) -> None:
    for step in states.states_between(before, to):
        assert step in states.NEXT[before]
        before = step


def test_a_report_that_skipped_states_names_them() -> None:
    assert states.states_between(JobState.PROCESSING, JobState.RUNNING) == (
        JobState.SUBMITTED,
        JobState.RUNNING,
    )
    assert states.states_between(JobState.RUNNING, JobState.SUBMITTED) == ()
    assert states.states_between(JobState.QUEUED, JobState.RUNNING) == ()


def test_a_move_that_the_table_lacks_is_refused_when_it_is_made() -> None:
    with pytest.raises(IllegalTransition, match="job 17 is Completed, so it cannot become Running"):
        Move(17, 1, JobState.COMPLETED, JobState.RUNNING, 0, "")
