"""The wall clock of deadlines: whatever the machine's clock does, time passes as it passes."""

from __future__ import annotations

import asyncio
import json

import structlog.testing

from shared.clock import SECOND
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
    assert saved == [START, START + 60 * SECOND, START + 120 * SECOND]
    assert json.loads((tmp_path / FILE).read_text())["now"] >= saved[-1] + 60 * SECOND
    assert [(line["event"], line["seconds"]) for line in logged] == [("clock.jumped", -DAY_S + 1)]


async def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    clock = PersistentClock(tmp_path / "gone", SimClock(), "boot")
    stop = asyncio.Event()
    stop.set()
    await clock.keep_saved(stop)
