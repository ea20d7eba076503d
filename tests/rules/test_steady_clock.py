"""The wall clock of deadlines: whatever the machine's clock does, time passes as it passes."""

from __future__ import annotations

import asyncio
import json

import pytest
import structlog.testing

from shared.clock import SECOND
from shared.steady_clock import FILE, PersistentClock, SteadyClock
from tests.kit.clock import START, SimClock

DAY_S = 86_400.0


@pytest.mark.parametrize("days", [-20_000, -3, 3, 20_000])
async def test_a_jump_of_the_machines_clock_passes_no_time(days):
    machine = SimClock()
    clock = SteadyClock(machine)
    machine.jump(days * DAY_S)
    assert clock.now() == START
    await machine.advance(100.0)
    passed = (clock.now() - START) / SECOND
    assert 98.9 <= passed <= 101.1


async def test_it_only_grows():
    machine = SimClock()
    clock = SteadyClock(machine)
    machine.jump(-DAY_S)
    seen = []
    for _ in range(10):
        await machine.advance(0.5)
        seen.append(clock.now())
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("seconds", [-5.0, 5.0])
async def test_small_corrections_of_the_machines_clock_are_followed(seconds):
    machine = SimClock()
    clock = SteadyClock(machine)
    machine.jump(seconds)
    for _ in range(60):
        await machine.advance(10.0)
        clock.now()
    assert clock.behind_s == 0.0
    assert clock.now() == machine.now()


async def test_a_restart_after_a_jump_goes_on_as_before(tmp_path):
    machine = SimClock()
    PersistentClock(tmp_path, machine, "boot").save()
    await machine.advance(7.0)
    machine.jump(30 * DAY_S)
    assert PersistentClock(tmp_path, machine, "boot").now() == START + 7 * SECOND


async def test_the_time_that_the_process_was_stopped_counts(tmp_path):
    machine = SimClock()
    PersistentClock(tmp_path, machine, "boot").save()
    await machine.advance(3 * DAY_S)
    assert PersistentClock(tmp_path, machine, "boot").now() == START + 3 * DAY_S * SECOND


@pytest.mark.parametrize(("jump_s", "expected_s"), [(DAY_S, DAY_S), (-DAY_S, 0.0)])
def test_after_a_start_of_the_machine_its_clock_is_taken_unless_it_is_behind(
    tmp_path, jump_s, expected_s
):
    PersistentClock(tmp_path, SimClock(), "first").save()
    machine = SimClock()
    machine.jump(jump_s)
    assert PersistentClock(tmp_path, machine, "second").now() == START + expected_s * SECOND


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"now": "soon"}', "null"])
def test_a_damaged_file_is_as_good_as_none(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert PersistentClock(tmp_path, SimClock(), "boot").now() == START


async def test_it_is_saved_every_minute_and_at_the_end(tmp_path):
    machine = SimClock()
    clock = PersistentClock(tmp_path, machine, "boot")
    stop = asyncio.Event()
    keeping = asyncio.create_task(clock.keep_saved(stop))
    await machine.until_asleep(60.0)
    assert json.loads((tmp_path / FILE).read_text())["now"] == START
    await machine.advance(60.0)
    await machine.until_asleep(60.0)
    assert json.loads((tmp_path / FILE).read_text())["now"] == START + 60 * SECOND
    await machine.advance(1.0)
    stop.set()
    await keeping
    assert json.loads((tmp_path / FILE).read_text())["now"] == START + 61 * SECOND


async def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    clock = PersistentClock(tmp_path / "gone", SimClock(), "boot")
    stop = asyncio.Event()
    stop.set()
    await clock.keep_saved(stop)


async def test_a_jump_is_logged_once(tmp_path):
    machine = SimClock()
    clock = PersistentClock(tmp_path, machine, "boot")
    stop = asyncio.Event()
    with structlog.testing.capture_logs() as logged:
        keeping = asyncio.create_task(clock.keep_saved(stop))
        await machine.until_asleep(60.0)
        machine.jump(-DAY_S)
        for _ in range(3):
            await machine.advance(60.0)
            await machine.until_asleep(60.0)
        stop.set()
        await keeping
    assert [(line["event"], line["seconds"]) for line in logged] == [("clock.jumped", -DAY_S + 1)]
