"""Times in each state."""

from __future__ import annotations

from server.domain.jobs import Event, history
from shared.clock import SECOND, utc
from shared.wire import JobState


def move(at_s: float, state: JobState, attempt: int = 0, agent: str | None = None) -> Event:
    at = round(at_s * SECOND)
    return Event(1, 1, at, attempt, JobState.QUEUED, state, None, "", agent=agent)


def test_each_state_lasts_until_the_next_and_the_last_one_until_now() -> None:
    moves = [move(10, JobState.QUEUED), move(12.5, JobState.RUNNING, 1, "node")]
    one, two = history(moves, 20 * SECOND)
    assert (one.status, one.at, one.seconds, one.attempt, one.agent) == (
        JobState.QUEUED,
        utc(10 * SECOND),
        2.5,
        0,
        None,
    )
    assert (two.status, two.seconds, two.attempt, two.agent) == (JobState.RUNNING, 7.5, 1, "node")
    assert history([], 20) == []


def test_a_clock_that_was_set_back_makes_no_time_negative() -> None:
    moves = [move(10, JobState.QUEUED), move(5, JobState.PROCESSING), move(7, JobState.SUBMITTED)]
    assert [one.seconds for one in history(moves, 6 * SECOND)] == [0, 2, 0]
