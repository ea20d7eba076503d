"""Whether a server is to be started again, and what is said of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.domain.troubles import Trouble, TroubleKind
from server.lifecycle import Supervision
from server.loops.runner import Loop, Supervisor
from shared import probe
from shared.probe import PATIENCE_S, Heartbeats
from tests.kit.clock import SimClock


class Sweep:
    def __init__(self) -> None:
        self.hangs, self.fails = asyncio.Event(), False
        self.hangs.set()

    async def run_once(self) -> int:
        await self.hangs.wait()
        if self.fails:
            raise RuntimeError("the disk is full")
        return 0


class Rig:
    def __init__(self) -> None:
        self.clock, self.sweep = SimClock(), Sweep()
        self.troubles: list[Trouble] = []
        loop = Loop("cleaner", self.sweep, 10.0, asyncio.Event(), self.clock)
        self.supervisor = Supervisor([loop], [], [])
        context = SimpleNamespace(troubles=self._troubles, clock=self.clock)
        server: Any = SimpleNamespace(context=context, supervisor=self.supervisor)
        self.supervision = Supervision(server)

    async def _troubles(self) -> list[Trouble]:
        return self.troubles


@pytest.fixture
async def rig():
    rig = Rig()
    rig.supervisor.start()
    yield rig
    rig.sweep.hangs.set()
    await rig.supervisor.stop()


async def test_a_loop_whose_sweep_does_not_end_is_for_the_watchdog(rig: Rig) -> None:
    rig.sweep.hangs.clear()
    await rig.clock.advance(PATIENCE_S)
    assert await rig.supervision.alive()
    with capture_logs() as lines:
        await rig.clock.advance(60)
        assert not await rig.supervision.alive()
        assert not await rig.supervision.alive()
    assert lines == [{"event": "loop.stuck", "loops": ["cleaner"], "log_level": "error"}]


async def test_a_loop_whose_sweeps_fail_is_alive(rig: Rig) -> None:
    rig.sweep.fails = True  # as they do for as long as a disk is full
    with capture_logs():  # to show them all costs more than the rest
        await rig.clock.advance(2 * PATIENCE_S)
    assert await rig.supervision.alive()


async def test_a_restart_does_not_help_a_disk_that_does_not_answer(rig: Rig) -> None:
    rig.sweep.hangs.clear()
    await rig.clock.advance(2 * PATIENCE_S)
    rig.troubles = [Trouble(TroubleKind.DATA_FOLDER_SILENT, "it does not answer")]
    assert await rig.supervision.alive()
    rig.troubles = [Trouble(TroubleKind.DISK_FULL, "the disk is full")]
    assert not await rig.supervision.alive()


async def test_a_heartbeat_that_stops_and_a_task_that_has_ended_are_found() -> None:
    clock = SimClock()
    beats = Heartbeats(clock)
    tick = beats.add("retention", 60)
    beats.check("workers", lambda: clock.monotonic() < 900)
    await clock.advance(60 + PATIENCE_S)
    assert beats.stuck() == []
    await clock.advance(1)
    assert beats.stuck() == ["retention"]
    tick()
    assert beats.stuck() == []
    await clock.advance(900)
    assert beats.stuck() == ["retention", "workers"]


async def test_what_keeps_it_from_new_work_is_logged_when_it_begins_changes_and_is_over() -> None:
    clock, stop = SimClock(), asyncio.Event()
    found: dict[str, str] = {"draining": "as its operator asked"}

    async def look() -> dict[str, str]:
        if "defect" in found:
            raise RuntimeError
        return dict(found)

    with capture_logs() as lines:
        watching = asyncio.create_task(probe.watch(look, stop, clock))
        await clock.advance(60)
        found["disk_full"] = "the disk is full"
        await clock.advance(60)
        found["defect"] = ""
        await clock.advance(probe.LOOK_EVERY_S)
        found.clear()
        await clock.advance(60)
        stop.set()
        await watching
    lost, unknown, regained = lines
    assert (lost["event"], lost["log_level"]) == ("readiness.lost", "error")
    assert (lost["reasons"], lost["why"]) == (["disk_full"], "the disk is full")
    assert unknown["event"] == "readiness.unknown"
    assert (regained["event"], regained["log_level"]) == ("readiness.regained", "info")
