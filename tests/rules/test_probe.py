"""A health check of something that may hang."""

from __future__ import annotations

import asyncio
import threading

from shared.probe import INTERVAL_S, Probe
from tests.kit.clock import SimClock


async def test_a_check_that_hangs_is_itself_the_problem():
    release, checks = threading.Event(), []

    def check() -> list[str]:
        checks.append(1)
        release.wait(20)
        return []

    clock = SimClock()
    probe = Probe("the disk", check, clock)
    for _ in range(3):
        asked = asyncio.create_task(probe.problems())
        await clock.advance(10 * INTERVAL_S)
        assert await asked == ["the disk does not answer"]
    assert len(checks) == 1  # nor does it take one thread after another
    release.set()
    assert await probe.problems() == []


async def test_a_problem_is_reported_until_it_is_over_and_no_longer():
    seen = ["full"]
    clock = SimClock()
    probe = Probe("the disk", lambda: list(seen), clock)
    assert await probe.problems() == ["full"]
    seen.clear()
    assert await probe.problems() == ["full"]  # as of a second ago at most
    await clock.advance(INTERVAL_S)
    assert await probe.problems() == []


async def test_a_check_that_fails_is_a_problem():
    def check() -> list[str]:
        raise RuntimeError("broken")

    assert await Probe("the disk", check, SimClock()).problems() == [
        "the disk cannot be checked: broken"
    ]
