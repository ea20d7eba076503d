"""A look at something that may hang."""

from __future__ import annotations

import asyncio
import threading

from shared.probe import EVERY_S, Probe
from tests.support.simclock import SimClock


async def test_a_look_that_hangs_is_itself_the_trouble():
    go_on, looks = threading.Event(), []

    def look() -> list[str]:
        looks.append(1)
        go_on.wait(20)
        return []

    clock = SimClock()
    probe = Probe("the disk", look, clock)
    for _ in range(3):
        asked = asyncio.create_task(probe.troubles())
        await clock.advance(10 * EVERY_S)
        assert await asked == ["the disk does not answer"]
    assert len(looks) == 1  # nor does it take one thread after another
    go_on.set()
    assert await probe.troubles() == []


async def test_a_trouble_is_told_until_it_is_over_and_no_longer():
    seen = ["full"]
    clock = SimClock()
    probe = Probe("the disk", lambda: list(seen), clock)
    assert await probe.troubles() == ["full"]
    seen.clear()
    assert await probe.troubles() == ["full"]  # as of a second ago at most
    await clock.advance(EVERY_S)
    assert await probe.troubles() == []


async def test_a_look_that_fails_is_a_trouble():
    def look() -> list[str]:
        raise RuntimeError("broken")

    assert await Probe("the disk", look, SimClock()).troubles() == [
        "the disk cannot be looked at: broken"
    ]
