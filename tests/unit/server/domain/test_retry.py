"""Whether another attempt follows, when, and from which budget."""

from __future__ import annotations

import pytest

from server.domain import retry
from server.domain.retry_policy import BackoffKind, RetryPolicy
from server.domain.service import Service
from shared.wire import Reason, RetryLater
from tests.kit.jobs import job

SERVICE = Service(
    "s",
    retry=RetryPolicy(3, (10.0, 60.0), retry_on=frozenset({"timeout", "exit:3"})),
    infra_retries=7,
)


def highest(_low: float, high: float) -> float:
    return high


@pytest.mark.parametrize(
    ("reason", "exit_code", "again"),
    [
        (Reason.TIMEOUT, None, True),
        (Reason.EXIT_CODE, 3, True),
        (Reason.EXIT_CODE, 4, False),
        (Reason.MEMORY_LIMIT, 137, False),
        (Reason.MEMORY_LIMIT, 3, True),
    ],
)
def test_a_failure_is_retried_for_the_reasons_and_exit_codes_that_the_service_names(
    reason, exit_code, again
) -> None:
    found = retry.after_failure(job(), SERVICE, reason, exit_code, highest)
    assert (found is not None) is again


def test_each_retry_waits_longer_and_the_last_delay_repeats_until_none_are_left() -> None:
    found = [
        retry.after_failure(
            job(retries_used=used, infra_used=2), SERVICE, Reason.TIMEOUT, None, highest
        )
        for used in range(4)
    ]
    assert [one and (one.delay_s, one.used) for one in found] == [
        (10.0, {"retries_used": 1}),
        (60.0, {"retries_used": 2}),
        (60.0, {"retries_used": 3}),
        None,
    ]
    assert [one and one.note for one in found[:3]] == [
        "; it will be tried again in 10s, 2 retries left after that",
        "; it will be tried again in 1m, 1 retry left after that",
        "; it will be tried again in 1m, no retries left after that",
    ]


def test_without_delays_a_retry_comes_at_once() -> None:
    service = Service("s", retry=RetryPolicy(1, (), retry_on=frozenset({"timeout"})))
    found = retry.after_failure(job(), service, Reason.TIMEOUT, None, highest)
    assert found is not None
    assert (found.delay_s, found.used) == (0.0, {"retries_used": 1})


def test_an_interruption_has_a_budget_of_its_own_and_waits_longer_each_time() -> None:
    found = [
        retry.after_interruption(job(infra_used=used, retries_used=1), SERVICE) for used in range(8)
    ]
    delays = [0.0, 1.0, 5.0, 15.0, 60.0, 60.0, 60.0]
    expected = [(delay, {"infra_used": n + 1}) for n, delay in enumerate(delays)]
    assert [one and (one.delay_s, one.used) for one in found] == [*expected, None]


def test_with_no_infra_retries_no_bundle_is_started_twice() -> None:
    assert retry.after_interruption(job(), Service("s", infra_retries=0)) is None


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (BackoffKind.CONSTANT, [30.0, 30.0, 30.0, 30.0]),
        (BackoffKind.LINEAR, [30.0, 60.0, 90.0, 100.0]),
        (BackoffKind.EXPONENTIAL, [30.0, 60.0, 100.0, 100.0]),
        (BackoffKind.EXPONENTIAL_JITTER, [15.0, 30.0, 50.0, 50.0]),
    ],
)
def test_a_backoff_grows_by_its_formula_up_to_its_cap(backoff, delays) -> None:
    rules = RetryPolicy(9, backoff=backoff, delay_s=30.0, max_delay_s=100.0)
    half = [retry.delay_s(rules, used, lambda low, high: (low + high) / 2) for used in range(4)]
    assert half == delays


def test_what_is_not_to_be_retried_is_not_whatever_else_says_so() -> None:
    rules = RetryPolicy(1, retry_on=frozenset({"exit_code"}), no_retry_on=frozenset({"exit:3"}))
    service = Service("s", retry=rules)
    assert retry.after_failure(job(), service, Reason.EXIT_CODE, 4, highest) is not None
    assert retry.after_failure(job(), service, Reason.EXIT_CODE, 3, highest) is None


def test_the_policy_of_a_job_replaces_its_services() -> None:
    own = job(retry=RetryPolicy(1, retry_on=frozenset({"exit:9"})))
    assert retry.after_failure(own, SERVICE, Reason.EXIT_CODE, 9, highest) is not None
    assert retry.after_failure(own, SERVICE, Reason.TIMEOUT, None, highest) is None


@pytest.mark.parametrize(
    ("after_s", "delay"), [(None, 60.0), (5.0, 5.0), (0.0, 0.0), (float("inf"), 86_400.0)]
)
def test_who_asks_to_be_tried_later_says_when_or_the_service_does(after_s, delay) -> None:
    asked = RetryLater(after_s=after_s)
    found = retry.later(job(later_used=1, retries_used=3), Service("s"), asked)
    assert found is not None
    assert (found.delay_s, found.used) == (delay, {"later_used": 2})


def test_a_job_asks_to_be_tried_later_as_often_as_its_service_allows() -> None:
    service = Service("s", retry_later_limit=2)
    found = [retry.later(job(later_used=used), service, RetryLater()) for used in range(3)]
    assert [one is None for one in found] == [False, False, True]
