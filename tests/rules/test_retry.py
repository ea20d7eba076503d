"""Whether another attempt follows, when, and from which budget."""

from __future__ import annotations

from typing import Any

import pytest

from server.domain import retry
from server.domain.jobs import Job
from server.domain.retry_policy import (
    NEVER,
    Backoff,
    BackoffKind,
    RetryPolicy,
    check_retry_reasons,
    left_out,
)
from server.domain.service import Service
from shared.wire import Reason, RetryLater
from tests.kit.each import each
from tests.kit.jobs import job

SERVICE = Service(
    "s",
    retry=RetryPolicy(3, (10.0, 60.0), retry_on=frozenset({"timeout", "exit:3"})),
    infra_retries=7,
)
BUT_3 = RetryPolicy(1, retry_on=frozenset({"exit_code"}), no_retry_on=frozenset({"exit:3"}))
OWN = job(retry=RetryPolicy(1, retry_on=frozenset({"exit:9"})))


def highest(_low: float, high: float) -> float:
    return high


@each(
    "found, service, reason, exit_code, again",
    [
        (job(), SERVICE, Reason.TIMEOUT, None, True),
        (job(), SERVICE, Reason.EXIT_CODE, 3, True),
        (job(), SERVICE, Reason.EXIT_CODE, 4, False),
        (job(), SERVICE, Reason.MEMORY_LIMIT, 137, False),
        (job(), SERVICE, Reason.MEMORY_LIMIT, 3, True),
        (job(), Service("s", retry=BUT_3), Reason.EXIT_CODE, 4, True),
        (job(), Service("s", retry=BUT_3), Reason.EXIT_CODE, 3, False),
        (OWN, SERVICE, Reason.EXIT_CODE, 9, True),
        (OWN, SERVICE, Reason.TIMEOUT, None, False),
    ],
)
def test_a_failure_is_retried_for_what_its_job_or_else_its_service_names(
    found: Job, service: Service, reason: Reason, exit_code: int | None, again: bool
) -> None:
    assert (retry.after_failure(found, service, reason, exit_code, highest) is not None) is again


def shown(found: retry.Retry | None) -> Any:
    return found and (found.delay_s, found.used)


def test_each_retry_waits_longer_and_the_last_delay_repeats_until_none_are_left() -> None:
    def retries(service: Service) -> list[Any]:
        return [
            shown(retry.after_failure(found, service, Reason.TIMEOUT, None, highest))
            for found in (job(retries_used=used, infra_used=2) for used in range(4))
        ]

    delays = [10.0, 60.0, 60.0]
    assert retries(SERVICE) == [*((s, {"retries_used": n}) for n, s in enumerate(delays, 1)), None]
    at_once = Service("s", retry=RetryPolicy(1, (), retry_on=frozenset({"timeout"})))
    assert retries(at_once) == [(0.0, {"retries_used": 1}), None, None, None]


def test_an_interruption_has_a_budget_of_its_own_and_waits_longer_each_time() -> None:
    jobs = (job(infra_used=used, retries_used=1) for used in range(8))
    found = [shown(retry.after_interruption(one, SERVICE)) for one in jobs]
    delays = [0.0, 1.0, 5.0, 15.0, 60.0, 60.0, 60.0]
    assert found == [*((s, {"infra_used": n}) for n, s in enumerate(delays, 1)), None]
    assert retry.after_interruption(job(), Service("s", infra_retries=0)) is None


@each(
    "backoff, delays",
    [
        (BackoffKind.CONSTANT, [30.0, 30.0, 30.0, 30.0]),
        (BackoffKind.LINEAR, [30.0, 60.0, 90.0, 100.0]),
        (BackoffKind.EXPONENTIAL, [30.0, 60.0, 100.0, 100.0]),
        (BackoffKind.EXPONENTIAL_JITTER, [15.0, 30.0, 50.0, 50.0]),
    ],
)
def test_a_backoff_grows_by_its_formula_up_to_its_cap(
    backoff: BackoffKind, delays: list[float]
) -> None:
    rules = RetryPolicy(9, backoff=backoff, delay_s=30.0, max_delay_s=100.0)
    half = [retry.delay_s(rules, used, lambda low, high: (low + high) / 2) for used in range(4)]
    assert half == delays


@each("after_s, delay", [(None, 60.0), (5.0, 5.0), (0.0, 0.0), (float("inf"), 86_400.0)])
def test_who_asks_to_be_tried_later_says_when_or_the_service_does_and_not_for_ever(
    after_s: float | None, delay: float
) -> None:
    asked, service = RetryLater(after_s=after_s), Service("s", retry_later_limit=2)
    found = [retry.later(job(later_used=used, retries_used=3), service, asked) for used in range(3)]
    assert [*map(shown, found)] == [(delay, {"later_used": 1}), (delay, {"later_used": 2}), None]


def test_what_would_be_the_same_next_time_cannot_be_asked_for() -> None:
    check_retry_reasons(["timeout", "memory_limit", "exit:1", "exit:255"], retried=True)
    check_retry_reasons([*NEVER], retried=False)
    for reason in map(str, NEVER):
        with pytest.raises(ValueError, match=f"'{reason}' is never tried again"):
            check_retry_reasons(["timeout", reason], retried=True)
    for unknown in ("exit:0", "exit:256", "exit:x", "bored", ""):
        with pytest.raises(ValueError, match="is neither an exit code"):
            check_retry_reasons([unknown], retried=False)


@each(
    "asked, missing",
    [
        ({"exit:7"}, ["heartbeat_timeout", "other exit codes", "timeout"]),
        ({"exit_code", "timeout"}, ["heartbeat_timeout"]),
        ({"exit_code", "timeout", "heartbeat_timeout", "memory_limit"}, []),
    ],
)
def test_what_a_list_leaves_out_that_is_usually_tried_again_is_named(
    asked: set[str], missing: list[str]
) -> None:
    assert left_out(RetryPolicy().retry_on, frozenset(asked)) == missing


def test_delays_of_failing_calls_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = Backoff[str](1.0, 10.0, free=1)
    assert [backoff.failed("a") for _ in range(7)] == [0, 1, 2, 4, 8, 10, 10]
    assert backoff.failed("b") == 0
    backoff.succeeded("a")
    assert backoff.failed("a") == 0
    for _ in range(10_000):
        backoff.failed("c")
    assert backoff.failed("c") == 10.0
