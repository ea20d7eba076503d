"""The drawing of a job's states."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.web.job.shown import pieces, took_s
from shared.wire import HistoryEntry, JobState

S = JobState


def entry(state: JobState, seconds: float, attempt: int = 1) -> HistoryEntry:
    return HistoryEntry(
        status=state, at=datetime(2026, 1, 1, tzinfo=UTC), seconds=seconds, attempt=attempt
    )


def test_pieces_are_as_long_as_the_states_lasted_and_each_is_visible():
    found = pieces([entry(S.QUEUED, 0.001), entry(S.RUNNING, 75), entry(S.UNKNOWN, 25)])
    queued, running, unknown = (one.width for one in found)
    assert running / unknown == pytest.approx(3, rel=0.2)
    assert 2 < queued < 4
    assert [one.room for one in found] == ["shape", "long", "word"]
    assert [one.going_on for one in found] == [False, False, True]


def test_how_long_ago_it_ended_takes_no_room():
    history = [entry(S.RUNNING, 10), entry(S.COMPLETED, 1e6)]
    running, end = pieces(history)
    assert end.width < 4 < running.width
    assert not end.going_on
    assert took_s(history) == 10


def test_a_state_that_follows_itself_is_one_piece():
    (one,) = pieces([entry(S.RUNNING, 1), entry(S.RUNNING, 2)])
    assert (one.entry.seconds, one.going_on) == (3, True)
    assert len(pieces([entry(S.RUNNING, 1), entry(S.RUNNING, 2, attempt=2)])) == 2


@given(
    st.lists(
        st.builds(entry, st.sampled_from(list(S)), st.floats(0, 1e9), st.integers(0, 300)),
        max_size=200,
    )
)
def test_any_history_fits_into_the_drawing(history):
    found = pieces(history)
    assert len(found) <= 30
    assert bool(found) is bool(history)
    for one, after in itertools.pairwise(found):
        assert one.x + one.width <= after.x + 0.1
    assert all(one.x >= 0 and one.x + one.width <= 100.1 and one.width > 0 for one in found)
