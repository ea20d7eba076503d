"""The values of ``submit``'s options as the form has them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from ferryman import BadArgument
from ferryman.upload import EARLY, JobOptions, upload_fields
from server.domain.upload_fields import OPTIONAL
from tests.kit.each import each


@each(
    ("option", "value", "text"),
    [
        ("timeout", 90, "90s"),
        ("queue_timeout", 0.25, "0.25s"),
        ("heartbeat_timeout", "5m", "5m"),
        ("retry_delays", [1, "5m", 0.5], "1s,5m,0.5s"),
        ("retry_on", ["timeout", "exit:3"], "timeout,exit:3"),
        ("priority", -5, "-5"),
        ("memory", 1 << 30, "1073741824"),
        ("not_before", datetime(2030, 1, 31, 9, tzinfo=UTC), "2030-01-31T09:00:00+00:00"),
        ("not_before", "in 2h", "in 2h"),
        ("array", range(100), "0-99:1"),
        ("array", range(5, 20, 10), "5-15:10"),
        ("array", "0-9,20", "0-9,20"),
        ("after", [17, 18], "17,18"),
        ("inputs_from", 17, "17"),
        ("outputs", ["out/*.csv", "best.pdb"], "out/*.csv,best.pdb"),
        ("result_files", "changed", "changed"),
    ],
)
def test_an_option_is_written_as_the_server_reads_it(option, value, text) -> None:
    options: JobOptions = {option: value}  # type: ignore[misc]
    assert upload_fields("s", "ann", None, (), options)[2:] == [(option, text)]


def test_meta_is_sent_as_json() -> None:
    ((_, text),) = upload_fields("s", "ann", None, (), {"meta": {"a": [1, "ü"]}})[2:]
    assert json.loads(text) == {"a": [1, "ü"]}


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("not_before", datetime(2030, 1, 31, 9), "without a time zone"),  # noqa: DTZ001 - the point
        ("array", range(0), "no indices"),
        ("array", range(9, 0, -1), "no indices that ascend"),
    ],
)
def test_what_cannot_be_written_is_refused_here(option, value, why) -> None:
    with pytest.raises(BadArgument, match=why):
        upload_fields("s", "ann", None, (), {option: value})  # type: ignore[misc]


def test_a_misspelled_option_is_an_error_of_the_program() -> None:
    with pytest.raises(TypeError, match=r"no argument 'time_out'; did you mean timeout\?"):
        upload_fields("s", "ann", None, (), {"time_out": 1})  # type: ignore[typeddict-unknown-key]


def test_every_optional_field_of_an_upload_is_an_option() -> None:
    assert set(OPTIONAL) - {"name", "tags"} == set(JobOptions.__annotations__)
    assert set(JobOptions.__annotations__) >= EARLY
