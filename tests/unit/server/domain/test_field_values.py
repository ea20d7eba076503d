"""The values of an upload's optional fields, and what is said of wrong ones."""

from __future__ import annotations

import json

import pytest

from server.domain.field_values import VALUES, Later
from server.domain.retry_policy import BackoffKind
from shared.clock import SECOND
from tests.kit.each import each


@each(
    ("field", "text", "value"),
    [
        ("tags", "a, b,a,", ("a", "b")),
        ("priority", "-100", -100),
        ("priority", "+7", 7),
        ("meta", '{"a": [1, "ü"]}', '{"a":[1,"ü"]}'),
        ("queue_timeout", "0s", 0.0),
        ("retry_delays", "90s,5m,1h30m", (90.0, 300.0, 5_400.0)),
        ("backoff", "exponential_jitter", BackoffKind.EXPONENTIAL_JITTER),
        ("retry_on", "timeout,exit:3", frozenset({"timeout", "exit:3"})),
        ("not_before", "in 2h", Later(after_s=7_200.0)),
        ("not_before", "1970-01-02T00:00:00Z", Later(at=86_400 * SECOND)),
        ("not_before", "1970-01-02T01:00:00+01:00", Later(at=86_400 * SECOND)),
        ("array", "0-99", ((0, 99, 1),)),
        ("array", "0-99:10,200", ((0, 90, 10), (200, 200, 1))),
        ("array_file", "params.txt", "params.txt"),
        ("max_parallel", "4", 4),
        ("batch_policy", "fail_fast", "fail_fast"),
        ("after", "17, 18,17", (17, 18)),
    ],
)
def test_a_value_is_read(field, text, value) -> None:
    assert VALUES[field](text) == value


@each(
    ("field", "text", "why"),
    [
        ("tags", ",".join(map(str, range(33))), "33 tags; there may be up to 32 words"),
        ("name", "a\nb", "'a\\nb' is not up to 200 printable characters"),
        ("tags", "a b", "'a b' is no tag; there may be up to 32 words"),
        ("priority", "101", "'101' is not a whole number from -100 to 100"),
        ("priority", "high", "'high' is not a whole number"),
        ("meta", "[1]", "not an object"),
        ("meta", "{", "'{' is not a JSON object such as"),
        ("meta", '{"a": NaN}', "NaN is not JSON"),
        ("meta", json.dumps({"a": "x" * (16 << 10)}), "longer than 16384 bytes"),
        ("meta", '{"a":' * 2_000 + "1" + "}" * 2_000, "nested too deeply"),
        ("meta", '{"a":' * 65 + "1" + "}" * 65, "nested too deeply"),
        ("meta", '{"a": "\\ud800"}', "half a character"),
        ("meta", '{"a": 1e999}', "not JSON compliant"),
        ("retry_delays", "soon", "'soon' is not a duration"),
        ("retry_delays", ",", "is not a list"),
        ("backoff", "slow", "constant, linear, exponential, exponential_jitter"),
        ("retry_on", "exit:x", "neither an exit code from exit:1 to exit:255"),
        ("retry_on", "exit:0", "neither an exit code from exit:1 to exit:255"),
        ("no_retry_on", "exit:256", "neither an exit code from exit:1 to exit:255"),
        ("no_retry_on", "sadness", "nor one of exit_code, timeout"),
        ("not_before", "tomorrow", "such as 2030-01-31T09:00:00Z"),
        ("not_before", "2030-01-31T09:00:00", "does not say its offset from UTC"),
        ("not_before", "in -2h", "negative"),
        ("not_before", "9999-12-31T23:59:59-14:00", "not in the years 1970 to 9000"),
        ("array", "9-0", "is not a range"),
        ("array", "0-9:0", "is not a range"),
        ("array", "0-9,5", "indices ascend"),
        ("array", "x", "is not a range"),
        ("array", "0-99999999999", "is not a range"),
        ("array_file", "/etc/passwd", "not the name of a file in the bundle"),
        ("max_parallel", "-1", "whole number from 0"),
        ("batch_policy", "wait", "neither fail_fast nor wait_all"),
        ("after", "17;18", "is not the number of a job"),
        ("inputs_from", ",", "1 to 1000 jobs"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(field, text, why) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared below
        VALUES[field](text)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 600
