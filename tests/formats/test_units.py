"""Durations, sizes, counts and encodings as they are written, and what is none."""

from __future__ import annotations

import re

import pytest
from pydantic import TypeAdapter, ValidationError

from shared.metrics import gzip_accepted
from shared.settings.limits import parse_limit
from shared.units.durations import Duration, parse_duration
from shared.units.sizes import Size, parse_size
from tests.kit.each import each


@each(
    ("text", "seconds"),
    [
        ("90s", 90), ("1h30m", 5400), ("1h 30m", 5400), (" 10d ", 864_000), ("2w1d", 1_296_000),
        ("1.5h", 5400), ("250ms", 0.25), ("1m500ms", 60.5), ("0s", 0), ("0", 0),
    ],
)  # fmt: skip
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@each(
    "text",
    [
        "", " ", "10", "s", "1h junk 5m", "10s;rm -rf5m", "1mm", "1y", "5m1h", "1h1h", "1,5h", ".h",
        "1h\n5m", "١h", "1e3s", "nan", "inf", "infs", "+5s", "5 s", "soon",
    ],
)  # fmt: skip
def test_anything_else_is_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration such as 90s, 1h30m or 10d"):
        parse_duration(text)


def test_a_negative_duration_is_refused_as_negative():
    with pytest.raises(ValueError, match="'-5s' is negative"):
        parse_duration("-5s")


@each("text", ["5300w", "9999999999d", "9" * 31 + "s"])
def test_a_duration_that_no_clock_can_add_is_refused(text):
    with pytest.raises(ValueError, match="longer than a hundred years"):
        parse_duration(text)


@each("value", [float("inf"), float("nan"), 1e300, "9" * 30])
def test_a_number_of_seconds_is_bounded_too(value):
    with pytest.raises(ValidationError, match="longer than a hundred years"):
        TypeAdapter(Duration).validate_python(value)


@each(
    ("text", "size"),
    [
        ("0", 0), ("1024", 1024), ("400MB", 400_000_000), ("2GiB", 2 << 30), ("2 gib", 2 << 30),
        ("1.5KiB", 1536), ("3k", 3000), ("7B", 7), ("4Ti", 4 << 40), (" 1MB ", 1_000_000),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text) == size


@each("text", ["", "MB", "lots", "-1MB", "1XB", "1MB;", "1M B", "1e9", "inf", "nan", "٣MB", "1iB"])
def test_anything_else_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size such as 400MB or 2GiB"):
        parse_size(text)


@each("value", ["8EiB", "9" * 30, 1 << 63, 10**5000])
def test_a_size_that_no_column_can_hold_is_refused(value):
    with pytest.raises(ValidationError, match="more than any disk or memory holds"):
        TypeAdapter(Size).validate_python(value)


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


@each("digit", ["9", " ", "1h", "1."])
@each(
    "parse",
    [
        parse_duration,
        parse_size,
        *(
            lambda text, name=name: parse_limit(name, text)
            for name in ("memory", "disk", "cpus", "pids")
        ),
    ],
)
def test_a_long_text_is_refused_by_its_length_alone(parse, digit):
    with pytest.raises(ValueError, match="longer than 32 characters") as caught:
        parse(Untouched(digit * 65_000))
    assert re.search("such as", str(caught.value))
    assert len(str(caught.value)) < 150


@each("kind", [Duration, Size])
def test_true_and_false_are_no_numbers(kind):
    """To Python they are, so JSON with true in place of a number would be taken."""
    read = TypeAdapter(kind).validate_python
    for value in (True, False):
        with pytest.raises(ValidationError, match=f"{str(value).lower()} is not a"):
            read(value)
    assert (read(0), read(1)) == (0, 1)


@each(
    ("header", "accepted"),
    [
        ("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip; q=0.001", True), ("", False),
        ("gzip;q=0", False), ("br, gzip ; Q = 0.000", False), ("identity", False),
        ("gzipped", False),
    ],
)  # fmt: skip
def test_gzip_is_taken_where_it_is_named_and_not_refused(header, accepted):
    assert gzip_accepted(header) is accepted
