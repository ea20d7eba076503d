"""Calls that are made together while others are under way; a check of something that may hang."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from shared.probe import INTERVAL_S, Probe
from shared.together import Together
from tests.kit.clock import SimClock
from tests.kit.waiting import turns


class Work:
    """Takes numbers; an odd one fails."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.go, self.cancelled = asyncio.Event(), 0

    async def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.groups.append(list(items))
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if 99 in items:
            raise OSError("all of them")
        return [ValueError(item) if item % 2 else item * 10 for item in items]


async def test_what_comes_meanwhile_is_one_group_and_each_has_its_own_answer() -> None:
    work = Work()
    together = Together(work, at_once=1, most=3)
    calls = [asyncio.create_task(together(n)) for n in (2, 4, 5, 6, 8)]
    await turns(10)
    assert work.groups == [[2, 4, 5]]
    work.go.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in answers] == [int, int, ValueError, int, int]
    assert work.groups == [[2, 4, 5], [6, 8]]
    assert await together(2) == 20


async def test_one_that_comes_alone_does_not_wait() -> None:
    work, calls = Work(), []
    together = Together(work, at_once=2, most=9)
    for number in (2, 4, 6, 8):
        calls.append(asyncio.create_task(together(number)))
        await turns(10)
    assert work.groups == [[2], [4]]
    work.go.set()
    await asyncio.gather(*calls)
    assert work.groups == [[2], [4], [6, 8]]


async def test_a_failure_of_all_is_everybodys_and_groups_are_bounded_by_size() -> None:
    """One that is larger goes alone."""
    work = Work()
    work.go.set()
    together = Together(work, at_once=1, most=9)
    answers = await asyncio.gather(together(99), together(2), return_exceptions=True)
    assert [str(one) for one in answers] == ["all of them"] * 2
    assert await together(4) == 40
    work.groups.clear()
    together = Together(work, at_once=1, most=9, size=lambda item: item, most_size=10)
    await asyncio.gather(*(together(n) for n in (50, 4, 6, 2, 20)))
    assert work.groups == [[50], [4, 6], [2], [20]]


async def test_work_goes_on_while_somebody_waits_for_it() -> None:
    work = Work()
    together = Together(work, at_once=1, most=2)
    calls = [asyncio.create_task(together(n)) for n in (2, 4, 6)]
    await turns(10)
    calls[0].cancel()
    calls[2].cancel()
    await turns(10)
    assert work.cancelled == 0
    calls[1].cancel()
    await turns(10)
    assert (work.cancelled, work.groups) == (1, [[2, 4]])
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    work.go.set()
    assert await together(8) == 80


async def test_a_check_that_hangs_is_itself_the_problem() -> None:
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
