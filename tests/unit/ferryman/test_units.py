"""What people read."""

from __future__ import annotations

import pytest

from ferryman.units import say_count, say_duration, say_size


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
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2 << 30, "2.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_a_size(size, text):
    assert say_size(size) == text


def test_a_count():
    assert [say_count(count, "job") for count in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
