"""Clocks: of deadlines, whatever the machine's does; of cron lines; and the one of tests."""

import asyncio
import contextlib
import json
import socket
import threading
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
import structlog.testing
from hypothesis import given
from hypothesis import strategies as st

from server.domain.errors import BadField
from server.domain.schedules import next_time
from shared.clock import SECOND, from_iso, iso
from shared.sqlite.database import Database
from shared.steady_clock import FILE, PersistentClock, SteadyClock
from tests.kit.clock import START, SimClock
from tests.kit.each import each

DAY_S = 86_400.0


@each("days", [-20_000, -3, 3, 20_000])
async def test_a_jump_of_the_machines_clock_passes_no_time_and_it_only_grows(days):
    machine = SimClock()
    clock = SteadyClock(machine)
    machine.jump(days * DAY_S)
    assert clock.now() == START
    seen = []
    for _ in range(200):
        await machine.advance(0.5)
        seen.append(clock.now())
    assert seen == sorted(set(seen))
    assert 98.9 <= (clock.now() - START) / SECOND <= 101.1


@each("seconds", [-5.0, 5.0])
async def test_small_corrections_of_the_machines_clock_are_followed(seconds):
    machine = SimClock()
    clock = SteadyClock(machine)
    machine.jump(seconds)
    for _ in range(60):
        await machine.advance(10.0)
        clock.now()
    assert clock.behind_s == 0.0
    assert clock.now() == machine.now()


@each(
    ("boot", "before_s", "jump_s", "passed_s"),
    [
        ("same", 7.0, 30 * DAY_S, 7.0),  # a jump while it was stopped passes no time
        ("same", 3 * DAY_S, 0.0, 3 * DAY_S),  # the time that it was stopped counts
        # After a start of the machine its clock is taken, unless it is behind.
        ("another", 0.0, DAY_S, DAY_S),
        ("another", 0.0, -DAY_S, 0.0),
    ],
)
async def test_a_process_that_is_started_again_goes_on(tmp_path, boot, before_s, jump_s, passed_s):
    machine = SimClock()
    PersistentClock(tmp_path, machine, "same").save()
    await machine.advance(before_s)
    machine.jump(jump_s)
    assert PersistentClock(tmp_path, machine, boot).now() == START + passed_s * SECOND


@each("text", ["", "{", "[]", "{}", '{"now": "soon"}', "null"])
def test_a_damaged_file_is_as_good_as_none(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert PersistentClock(tmp_path, SimClock(), "boot").now() == START


async def test_it_is_saved_every_minute_and_at_the_end_and_a_jump_is_logged_once(tmp_path):
    machine = SimClock()
    clock = PersistentClock(tmp_path, machine, "boot")
    stop, saved = asyncio.Event(), []
    with structlog.testing.capture_logs() as logged:
        keeping = asyncio.create_task(clock.keep_saved(stop))
        for seconds in (0.0, 60.0, 60.0):
            await machine.advance(seconds)
            await machine.until_asleep(60.0)
            saved.append(json.loads((tmp_path / FILE).read_text())["now"])
        machine.jump(-DAY_S)
        for _ in range(3):
            await machine.advance(60.0)
            await machine.until_asleep(60.0)
        await machine.advance(1.0)
        stop.set()
        await keeping
    await PersistentClock(tmp_path / "gone", SimClock(), "boot").keep_saved(stop)  # not written
    assert saved == [START, START + 60 * SECOND, START + 120 * SECOND]
    assert json.loads((tmp_path / FILE).read_text())["now"] >= saved[-1] + 60 * SECOND
    assert [(line["event"], line["seconds"]) for line in logged] == [("clock.jumped", -DAY_S + 1)]


# -- cron lines

BERLIN = "Europe/Berlin"


def times(line: str, after: str, count: int, zone: str) -> list[str]:
    """In local time, with its offset."""
    at, found = from_iso(after), []
    for _ in range(count):
        at = next_time(line, zone, at)
        local = datetime.fromtimestamp(at / SECOND, ZoneInfo(zone))
        found.append(local.isoformat(timespec="minutes")[5:])
    return found


LINES = {
    "*/15 9-10 * * MON-FRI": "2026-03-02T09:00",
    "30 2 * * *": "2026-03-01T02:30",
    "0 0 29 2 *": "2028-02-29T00:00",
    "5 4 1 jan,jul *": "2026-07-01T04:05",
    "0 12 * * 7": "2026-03-01T12:00",
    "0 12 13 * 5": "2026-03-06T12:00",
    "0 0 L * *": "2026-03-31T00:00",
}


def test_the_fields_are_those_of_cron() -> None:
    after = from_iso("2026-02-28T23:59:59+00:00")
    assert {line: iso(next_time(line, "UTC", after))[:16] for line in LINES} == LINES


@each(
    "text, words",
    [
        *((one, "five fields") for one in ("", "* * * *", "@daily", "0 * * * * *")),
        *((one, "bad minute") for one in ("60 * * * *", "*/0 * * * *")),
        ("0 0 * * FUN", "bad day-of-week"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("* * */20 * 1L", "no time fits"),
        (f"{'0,' * 200}0 * * * *", "five fields"),
    ],
)
def test_what_is_no_cron_line_is_named(text: str, words: str) -> None:
    with pytest.raises(BadField, match=words):
        next_time(text, "UTC", 0)


@given(st.text(alphabet="0123456789*/,-#LWMONJA ", max_size=30))
def test_any_text_is_a_line_or_refused(text: str) -> None:
    after = from_iso("2026-01-01T00:00:00Z")
    with contextlib.suppress(BadField):
        assert next_time(text, BERLIN, after) > after


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
def test_it_is_due_in_local_time_where_clocks_are_changed(line, after, zone, expected):
    assert times(line, f"{after}:00Z", len(expected), zone) == expected


# -- the clock of tests


async def test_no_time_passes_while_threads_and_databases_work_and_bytes_are_on_their_way(tmp_path):
    clock = SimClock()
    database = await Database.open(tmp_path / "here.sqlite", [("CREATE TABLE t (n INTEGER)",)])
    alarm = asyncio.create_task(clock.sleep(5))
    goes_on = threading.Event()
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)
    echo_reader, echo_writer = await asyncio.open_connection(sock=far)
    asyncio.get_running_loop().call_later(0.02, goes_on.set)  # real time, in which the thread waits
    with clock.autojump():
        await asyncio.to_thread(goes_on.wait)
        for _ in range(20):
            await database.rows("SELECT * FROM t")
        assert clock.monotonic() == 0
        for _ in range(50):
            writer.write(b"x")
            echo_writer.write(await echo_reader.readexactly(1))
            assert await reader.readexactly(1) == b"x"
        assert clock.monotonic() == 0
        await alarm
    assert clock.monotonic() == 5
    await database.close()
    for one in (writer, echo_writer):
        one.close()
        await one.wait_closed()
