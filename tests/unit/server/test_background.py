"""When each loop looks."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any, cast

import pytest

from server.background import Sweeps, loops
from server.loops.wakeups import JobWakeups
from server.settings.tables import ServerTable
from tests.support.sim_clock import SimClock


class Sweep:
    """Knows at 0 s that it has something to do at 2 s, and then of nothing more."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.at: list[float] = []

    async def run_once(self) -> int:
        self.at.append(self._clock.monotonic())
        return 1

    def until_next_s(self) -> float:
        return 2.0 if len(self.at) == 1 else math.inf


@pytest.mark.parametrize("name", ["sender", "webhooks", "statistics", "schedules"])
async def test_a_sweep_that_knows_when_it_has_something_to_do_comes_then(name: str) -> None:
    clock, stop = SimClock(), asyncio.Event()
    made: dict[str, Any] = {each.name: Sweep(clock) for each in dataclasses.fields(Sweeps)}
    every = loops(ServerTable(sender_interval=3600.0), JobWakeups(), clock, Sweeps(**made))
    (loop,) = (each for each in every if each.name == name)
    running = asyncio.create_task(loop.run(stop))
    await clock.advance(50)
    stop.set()
    loop.wake()
    await running
    assert cast(Sweep, made[name]).at == [0, 2]
