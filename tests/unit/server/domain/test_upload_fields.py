"""The text fields of an upload."""

from __future__ import annotations

import pytest

from server.domain.errors import BadField
from server.domain.retry_policy import BackoffKind, RetryPolicy
from server.domain.service import Service
from server.domain.upload_fields import check_field, given, upload_request
from shared.principals import LOCAL
from shared.wire import Limits
from tests.kit.each import each

SERVICES = {"s": Service("s", timeout_s=3600, limits=Limits(memory=1 << 30, cpus=2, pids=100))}
NEEDED = {"user_id": "ada", "service": "s"}


def refusal(name: str, value: str) -> BadField:
    with pytest.raises(BadField) as caught:
        check_field(name, value, SERVICES, LOCAL)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("timeout", "-5s", "invalid_timeout"),
        ("timeout", "soon", "invalid_timeout"),
        ("timeout", "1h junk 5m", "invalid_timeout"),
        ("timeout", "nan", "invalid_timeout"),
        ("cpus", "nan", "invalid_cpus"),
        ("cpus", "inf", "invalid_cpus"),
        ("cpus", "-1", "invalid_cpus"),
        ("memory", "-1MB", "invalid_memory"),
        ("pids", "1e3", "invalid_pids"),
        ("user_id", "", "invalid_user_id"),
        ("service", "", "unknown_service"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value, code):
    problem = refusal(name, value)
    assert (problem.field, problem.code) == (name, code)


@each("name", ["user_id", "service", "name", "tags", "timeout", "memory", "disk", "cpus", "pids"])
@each("text", ["9" * 65_000, "1h" * 32_000, "\u0301" * 20_000])
def test_a_very_long_value_is_refused_in_a_few_words(name, text):
    assert len(str(refusal(name, text))) < 200


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cpu", "did you mean cpus?"),
        ("timeoutt", "did you mean timeout?"),
        ("userid", "did you mean user_id?"),
        ("zzz", "known are user_id, service, name, tags, priority, meta, timeout, "),
        ("x_" * 32_000, "known are"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(name, hint):
    problem = refusal(name, "2")
    assert problem.code == "unknown_field"
    assert hint in str(problem)
    assert len(str(problem)) < 500


def test_optional_fields_that_are_empty_count_as_left_out():
    empty = dict.fromkeys(["name", "tags", "timeout", "memory", "disk", "cpus", "pids"], "")
    assert given(NEEDED | empty) == NEEDED
    request = upload_request(NEEDED | empty, SERVICES, LOCAL)
    assert request == upload_request(NEEDED, SERVICES, LOCAL)
    assert request.warnings == ()


def test_what_is_more_than_the_service_allows_is_cut_with_a_warning():
    asked = {"timeout": "10d", "memory": "1TB", "cpus": "64", "pids": "100"}
    request = upload_request(NEEDED | asked, SERVICES, LOCAL)
    assert (request.timeout_s, request.limits) == (3600, SERVICES["s"].limits)
    assert request.warnings == (
        "timeout: 10d was asked for, service s allows 1h",
        "memory: 1TB was asked for, service s allows 1.0 GiB",
        "cpus: 64 was asked for, service s allows 2",
    )


def test_what_is_less_is_no_matter_for_a_warning():
    request = upload_request(NEEDED | {"timeout": "5s", "memory": "64MiB"}, SERVICES, LOCAL)
    assert (request.timeout_s, request.limits.memory, request.warnings) == (5, 64 << 20, ())


@pytest.mark.parametrize("name", ["retry_delay", "max_retry_delay"])
@pytest.mark.parametrize("other", [{}, {"retry_delays": "5s"}])
def test_the_delays_of_a_backoff_are_refused_where_there_is_none(name, other):
    with pytest.raises(BadField, match="belongs to a backoff") as caught:
        upload_request({**NEEDED, **other, name: "5s"}, SERVICES, LOCAL)
    assert caught.value.code == f"invalid_{name}"


@pytest.mark.parametrize("own", [None, BackoffKind.CONSTANT])
def test_the_delays_of_a_backoff_are_taken_where_there_is_one(own):
    services = {"s": Service("s", retry=RetryPolicy(backoff=own))}
    fields = NEEDED | {"retry_delay": "5s"} | ({} if own else {"backoff": "linear"})
    asked = upload_request(fields, services, LOCAL)
    assert asked.retry is not None
    assert asked.retry.delay_s == 5
