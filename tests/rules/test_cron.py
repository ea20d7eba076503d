"""Cron lines: what is one, and when it is due where clocks are changed."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies

from server.domain.errors import BadField
from server.domain.schedules import next_time
from shared.clock import SECOND, from_iso, iso
from tests.kit.each import each

BERLIN = "Europe/Berlin"


def times(line: str, after: str, count: int, zone: str) -> list[str]:
    """In local time, with its offset."""
    at, found = from_iso(after), []
    for _ in range(count):
        at = next_time(line, zone, at)
        local = datetime.fromtimestamp(at / SECOND, ZoneInfo(zone))
        found.append(local.isoformat(timespec="minutes")[5:])
    return found


@each(
    "line, expected",
    [
        ("*/15 9-10 * * MON-FRI", "2026-03-02T09:00"),
        ("30 2 * * *", "2026-03-01T02:30"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("5 4 1 jan,jul *", "2026-07-01T04:05"),
        ("0 12 * * 7", "2026-03-01T12:00"),
        ("0 12 13 * 5", "2026-03-06T12:00"),
        ("0 0 L * *", "2026-03-31T00:00"),
    ],
)
def test_the_fields_are_those_of_cron(line: str, expected: str) -> None:
    after = from_iso("2026-02-28T23:59:59+00:00")
    assert iso(next_time(line, "UTC", after))[:16] == expected


@each(
    "text, words",
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"),
        ("@daily", "five fields"),
        ("60 * * * *", "bad minute"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 * * FUN", "bad day-of-week"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("* * */20 * 1L", "no time fits"),
        (f"{'0,' * 200}0 * * * *", "five fields"),
    ],
)
def test_what_is_no_cron_line_is_named(text: str, words: str) -> None:
    with pytest.raises(BadField, match=words):
        next_time(text, "UTC", 0)


@given(strategies.text(alphabet="0123456789*/,-#LWMONJA ", max_size=30))
def test_any_text_is_a_line_or_refused(text: str) -> None:
    after = from_iso("2026-01-01T00:00:00Z")
    try:
        assert next_time(text, BERLIN, after) > after
    except BadField:
        return


@each(
    "line, after, zone, expected",
    [
        # A time that clocks skip is due as soon as they go on.
        ("30 2 * * *", "2026-03-28T12:00", BERLIN, ["03-29T03:00+02:00", "03-30T02:30+02:00"]),
        (
            *("*/30 * * * *", "2026-03-29T00:20", BERLIN),
            ["03-29T01:30+01:00", "03-29T03:00+02:00", "03-29T03:30+02:00"],
        ),
        # One that comes twice is due the first time, and is over when it is looked at between.
        ("30 2 * * *", "2026-10-24T12:00", BERLIN, ["10-25T02:30+02:00", "10-26T02:30+01:00"]),
        ("30 2 * * *", "2026-10-25T01:10", BERLIN, ["10-26T02:30+01:00"]),
        (
            *("30 * * * *", "2026-10-24T23:50", BERLIN),
            ["10-25T02:30+02:00", "10-25T02:30+01:00", "10-25T03:30+01:00"],
        ),
        ("0 9 * * *", "2026-06-01T00:00", "Asia/Tokyo", ["06-02T09:00+09:00"]),
    ],
)
def test_it_is_due_in_local_time_where_clocks_are_changed(
    line: str, after: str, zone: str, expected: list[str]
) -> None:
    assert times(line, f"{after}:00Z", len(expected), zone) == expected
