"""Growing delays."""

from __future__ import annotations

from server.domain.retry_policy import Backoff


def test_delays_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = Backoff[str](1.0, 10.0, free=1)
    assert [backoff.failed("a") for _ in range(7)] == [0, 1, 2, 4, 8, 10, 10]
    assert backoff.failed("b") == 0
    backoff.succeeded("a")
    assert backoff.failed("a") == 0
    for _ in range(10_000):
        backoff.failed("c")
    assert backoff.failed("c") == 10.0
