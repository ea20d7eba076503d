"""Histograms, of which percentiles are read; and sums of trees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.domain.statistics import BOUNDS_S, Observed, Tree, add, counts_of, quantile
from shared.clock import SECOND
from shared.wire import JobState

DAY = 86_400


def waited(*seconds: float) -> Tree:
    found: Tree = {}
    for took in seconds:
        at = round(took * SECOND)
        start = Observed("s", at, JobState.SUBMITTED, JobState.RUNNING, None, waits_since=0)
        add(found, counts_of(start))
    waiting: Tree = found["waiting"]
    return waiting


def test_the_bounds_are_five_for_each_factor_of_ten_up_to_more_than_thirty_days():
    assert BOUNDS_S[:6] == (0.01, 0.0158, 0.0251, 0.0398, 0.0631, 0.1)
    assert 30 * DAY < BOUNDS_S[-1] < 60 * DAY


def test_nothing_has_no_percentiles():
    assert quantile({}, 0.5) is None


def test_what_is_longer_than_all_buckets_counts_as_the_longest_bound():
    assert quantile(waited(400 * DAY), 0.5) == BOUNDS_S[-1]


@given(
    times=st.lists(st.floats(0, 40 * DAY), min_size=1, max_size=60),
    part=st.sampled_from([0.5, 0.95]),
)
def test_a_percentile_is_in_the_bucket_of_the_true_one(times, part):
    whole = sorted(round(took * SECOND) / SECOND for took in times)
    true = whole[max(0, -(-round(part * len(whole) * 100) // 100) - 1)]
    found = quantile(waited(*whole), part)
    assert found is not None
    if true > BOUNDS_S[0]:
        assert true / 1.6 <= found <= true * 1.6
    else:
        assert 0 <= found <= BOUNDS_S[0]


@given(st.lists(st.floats(0, DAY), min_size=1, max_size=30), st.integers(0, 30))
def test_a_sum_of_histograms_is_the_histogram_of_all(times, at):
    parts = [part for part in (times[:at], times[at:]) if part]
    total: Tree = {}
    for part in parts:
        add(total, waited(*part))
    assert total == waited(*times)
