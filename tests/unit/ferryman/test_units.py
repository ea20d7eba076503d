"""What people read."""

from __future__ import annotations

import pytest

from ferryman.units import say_about, say_count, say_duration, say_size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0004, "1ms"),
        (0.043, "43ms"),
        (0.31, "0.3s"),
        (4, "4s"),
        (48.2, "48s"),
        (90, "1m 30s"),
        (5400, "1h 30m"),
        (864_000, "10d"),
    ],
)
def test_a_duration(seconds, text):
    assert say_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "1 min"),
        (0, "1 min"),
        (100, "2 min"),
        (9.4 * 60, "9 min"),
        (12 * 60, "10 min"),
        (58.4 * 60, "1 h"),
        (57 * 60, "55 min"),
        (100 * 60, "2 h"),
        (47 * 3_600, "47 h"),
        (6.6 * 86_400, "7 d"),
    ],
)
def test_an_estimate(seconds, text):
    assert say_about(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2 << 30, "2.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_a_size(size, text):
    assert say_size(size) == text


def test_a_count():
    assert [say_count(count, "job") for count in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
