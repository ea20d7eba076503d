"""Durations, sizes, counts, encodings and the numbers of a peer as they are written."""

import functools
import json

import pytest
from pydantic import TypeAdapter, ValidationError

from shared.metrics import gzip_accepted
from shared.settings.limits import parse_limit
from shared.units.durations import Duration, parse_duration
from shared.units.sizes import Size, parse_size
from shared.wire import AgentEvent, AgentHealth, PayloadDoc, PayloadList, PayloadState
from tests.kit.each import each

DURATIONS = {
    "90s": 90, "1h30m": 5400, "1h 30m": 5400, " 10d ": 864_000, "2w1d": 1_296_000, "1.5h": 5400,
    "250ms": 0.25, "1m500ms": 60.5, "0s": 0, "0": 0,
}  # fmt: skip
SIZES = {
    "0": 0, "1024": 1024, "400MB": 400_000_000, "2GiB": 2 << 30, "2 gib": 2 << 30, "7B": 7,
    "1.5KiB": 1536, "3k": 3000, "4Ti": 4 << 40, " 1MB ": 1_000_000,
}  # fmt: skip


def test_durations_and_sizes():
    assert {text: parse_duration(text) for text in DURATIONS} == DURATIONS
    assert {text: parse_size(text) for text in SIZES} == SIZES


NO_DURATIONS = [
    *("", " ", "10", "s", "1h junk 5m", "10s;rm -rf5m", "1mm", "1y", "5m1h", "1h1h", "1,5h", ".h"),
    *("1h\n5m", "١h", "1e3s", "nan", "inf", "infs", "+5s", "5 s", "soon"),
]
NO_SIZES = ["", "MB", "lots", "-1MB", "1XB", "1MB;", "1M B", "1e9", "inf", "nan", "٣MB", "1iB"]


@each(
    ("parse", "text", "why"),
    [
        *((parse_duration, one, "is not a duration such as 90s, 1h30m or") for one in NO_DURATIONS),
        *((parse_size, one, "is not a size such as 400MB or 2GiB") for one in NO_SIZES),
        (parse_duration, "-5s", "'-5s' is negative"),
        *(
            (parse_duration, one, "longer than a hundred years")
            for one in ("5300w", "9999999999d", "9" * 31 + "s")
        ),
    ],
)
def test_anything_else_is_none(parse, text, why):
    with pytest.raises(ValueError, match=why):
        parse(text)


@each(
    ("kind", "value", "why"),
    [
        *(
            (Duration, value, "longer than a hundred years")
            for value in (float("inf"), float("nan"), 1e300, "9" * 30)
        ),
        *(
            (Size, value, "more than any disk or memory holds")
            for value in ("8EiB", "9" * 30, 1 << 63, 10**5000)
        ),
        # To Python they are numbers, so JSON with true in place of one would be taken.
        *((kind, True, "true is not a") for kind in (Duration, Size)),
        *((kind, False, "false is not a") for kind in (Duration, Size)),
    ],
)
def test_what_no_clock_can_add_or_no_column_hold_is_refused(kind, value, why):
    read = TypeAdapter(kind).validate_python
    with pytest.raises(ValidationError, match=why):
        read(value)
    assert (read(0), read(1)) == (0, 1)


@each("name", ["cpus", "pids"])
@each("text", ["", "nan", "inf", "-1", "1_000", "٣", "1e3", "0x10", "9" * 12])
def test_what_is_no_plain_number_is_no_count(name, text):
    with pytest.raises(ValueError, match="is not a"):
        parse_limit(name, text)


class Untouched(str):
    """A text that may be measured and cut, and nothing that costs time in proportion to it."""

    __slots__ = ()

    def strip(self, *_):
        raise AssertionError("somebody reads all of it")

    __iter__ = __float__ = __int__ = __repr__ = __str__ = strip


PARSERS = [
    *(parse_duration, parse_size),
    *(functools.partial(parse_limit, name) for name in ("memory", "disk", "cpus", "pids")),
]


@each("digit", ["9", " ", "1h", "1."])
@each("parse", PARSERS)
def test_a_long_text_is_refused_by_its_length_alone(parse, digit):
    with pytest.raises(ValueError, match="longer than 32 characters") as caught:
        parse(Untouched(digit * 65_000))
    assert "such as" in str(caught.value)
    assert len(str(caught.value)) < 150


def test_gzip_is_taken_where_it_is_named_and_not_refused():
    taken = ("gzip", "deflate, GZIP;q=0.5", "gzip; q=0.001")
    others = ("", "gzip;q=0", "br, gzip ; Q = 0.000", "identity", "gzipped")
    assert [header for header in (*taken, *others) if gzip_accepted(header)] == [*taken]


# -- what a peer says is a number that can be kept, or no answer at all

FAILED = {"id": 1, "status": "Failed"}


@each("number", [2**63, -(2**63) - 1, 10**40])
@each(
    ("model", "document", "field"),
    [
        (PayloadDoc, FAILED, "id"),
        (PayloadDoc, FAILED, "exit_code"),
        (PayloadDoc, FAILED | {"result": {"sha256": ""}}, "result.size"),
        (PayloadList, {"payloads": []}, "seq"),
        (AgentEvent, {}, "seq"),
        (AgentHealth, {"status": "ok"}, "slots"),
    ],
)
def test_a_number_that_no_database_can_keep_is_refused(model, document, field, number):
    def with_number(value: int) -> str:
        outer, _, inner = field.partition(".")
        made = {**document[outer], inner: value} if inner else value
        return json.dumps(document | {outer: made})

    model.model_validate_json(with_number(2**63 - 1))
    with pytest.raises(ValidationError):
        model.model_validate_json(with_number(number))


@each("seconds", ["1e400", "-1e400", "NaN"])
@each("field", ["wall_s", "cpu_s"])
def test_a_time_that_never_ends_is_refused(field: str, seconds: str) -> None:
    usage = json.dumps({"wall_s": 1.0} | {field: 12345}).replace("12345", seconds)
    with pytest.raises(ValidationError):
        PayloadDoc.model_validate_json(f'{{"id": 1, "status": "Failed", "usage": {usage}}}')


def test_what_a_payload_was_given_is_not_kept():
    """An agent could fill the server's memory with it; nested lists take many times their size."""
    nested = b'{"id":1,"status":"Running","input":{"a":[' + b"[]," * 10_000 + b"[]]}}"
    assert PayloadDoc.model_validate_json(nested).input == {}
    assert PayloadDoc(id=1, status=PayloadState.RUNNING).model_dump()["input"] == {}
