"""Whether another attempt follows, when, and from which budget."""

from __future__ import annotations

import pytest

from server.domain import retry
from server.domain.retry import Retry
from server.domain.service import Service
from shared.wire import Reason
from tests.support.jobs import job

SERVICE = Service(
    "s",
    retries=3,
    retry_delays_s=(10.0, 60.0),
    retry_on=frozenset({"timeout", "exit:3"}),
    infra_retries=7,
)


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
    found = retry.after_failure(job(), SERVICE, reason, exit_code)
    assert (found is not None) is again


def test_each_retry_waits_longer_and_the_last_delay_repeats_until_none_are_left() -> None:
    found = [
        retry.after_failure(job(retries_used=used, infra_used=2), SERVICE, Reason.TIMEOUT, None)
        for used in range(4)
    ]
    assert found == [Retry(10.0, 2, 1), Retry(60.0, 2, 2), Retry(60.0, 2, 3), None]


def test_without_delays_a_retry_comes_at_once() -> None:
    service = Service("s", retries=1, retry_delays_s=(), retry_on=frozenset({"timeout"}))
    assert retry.after_failure(job(), service, Reason.TIMEOUT, None) == Retry(0.0, 0, 1)


def test_an_interruption_has_a_budget_of_its_own_and_waits_longer_each_time() -> None:
    found = [
        retry.after_interruption(job(infra_used=used, retries_used=1), SERVICE) for used in range(8)
    ]
    delays = [0.0, 1.0, 5.0, 15.0, 60.0, 60.0, 60.0]
    assert found == [*(Retry(delay, n + 1, 1) for n, delay in enumerate(delays)), None]


def test_with_no_infra_retries_no_bundle_is_started_twice() -> None:
    assert retry.after_interruption(job(), Service("s", infra_retries=0)) is None
