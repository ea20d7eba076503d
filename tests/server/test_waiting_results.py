"""Results that find no room on the server's disk: who is tried when."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Final

import pytest

from server.stages.results import NoRoom, WaitingResults
from tests.kit.clock import SimClock

MIB: Final = 1 << 20


class Disk:
    """Results that wait for it, by number.

    Attributes:
        available: bytes that may be used.
        ends: how often none waited any more.
        tried: those whose turn has come, in order.
    """

    def __init__(self, available: int) -> None:
        self.available, self.ends, self.clock = available, 0, SimClock()
        self.tried: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []
        scratch: Any = SimpleNamespace(measure=self._look)
        self.results = WaitingResults(scratch, self.clock, self._end)

    def _look(self) -> int:
        if self.available < 0:
            raise OSError(errno.EIO, "Input/output error")
        return self.available

    def _end(self) -> None:
        self.ends += 1

    async def fails(self, number: int, size: int | None, problem: OSError | None = None) -> str:
        """It does not fit, and waits. Returns what its job says."""
        problem = problem or NoRoom(size, self.available)
        why = await self.results.add(("node", number), problem, size)
        self._tasks.append(asyncio.create_task(self._turn(number)))
        await self.clock.settle()
        return str(why)

    async def _turn(self, number: int) -> None:
        waits = True
        while waits:
            await self.results.turn(("node", number))
            with contextlib.suppress(NoRoom):
                await self.results.check(("node", number), 0)
                waits = False
        self.tried.append(number)

    async def look(self, available: int) -> list[int]:
        """A sweep finds so much room. Returns which are tried."""
        self.available, before = available, len(self.tried)
        await self.results.run_once()
        await self.clock.settle()
        return self.tried[before:]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    found = Disk(10 * MIB)
    yield found
    await found.stop()


FULL = OSError(errno.ENOSPC, "No space left on device")


async def test_the_oldest_are_tried_first_all_that_fit_at_once(disk: Disk) -> None:
    for number, size in enumerate((50, 60, 20, 5)):
        await disk.fails(number, size * MIB)
    assert await disk.look(49 * MIB) == [2, 3], "what fits is not held up by what does not"
    disk.results.done(("node", 2))
    disk.results.done(("node", 3))
    assert await disk.look(105 * MIB) == [0], "what was given to one is not given to the next"
    assert await disk.look(120 * MIB) == [1]


async def test_a_newer_result_that_would_fit_does_not_go_before_one_that_waits(disk: Disk) -> None:
    await disk.results.check(("node", 1), 10 * MIB)
    with pytest.raises(NoRoom, match=r"server's disk: 11.0 MiB needed, 10.0 MiB may be used"):
        await disk.results.check(("node", 1), 11 * MIB)
    await disk.fails(1, 50 * MIB)
    disk.available = 55 * MIB  # and nobody has looked yet
    with pytest.raises(NoRoom) as behind:
        await disk.results.check(("node", 2), 10 * MIB)
    assert behind.value.is_brief
    with pytest.raises(NoRoom):
        await disk.results.check(("node", 3), 1)
    await disk.fails(2, 10 * MIB, behind.value)
    assert await disk.look(55 * MIB) == [1]
    await disk.results.check(("node", 1), 50 * MIB)
    disk.results.done(("node", 1))
    assert await disk.look(12 * MIB) == [2]
    disk.results.done(("node", 2))
    await disk.results.check(("node", 3), 1)
    assert disk.ends == 2, "jobs are sent again to an agent whose results wait no more"


async def test_what_an_agent_announces_holds_up_only_that_agent(disk: Disk) -> None:
    hold = disk.results.hold
    assert not hold([]), "nobody is held"
    await disk.fails(1, 50 * MIB)
    assert hold(["node"])
    assert not hold(["node", "other"]), "another agent can work"
    await disk.results.add(("other", 1), NoRoom(MIB, 10 * MIB), MIB)
    assert not hold(["other"]), "its result fits, and only waits for its turn"
    await disk.results.add(("other", 2), NoRoom(11 * MIB, 10 * MIB), 11 * MIB)
    assert hold(["node", "other"])
    disk.results.done(("other", 2))
    assert not hold(["other"])


async def test_what_waits_is_told_with_its_numbers_until_it_is_wanted_no_more(disk: Disk) -> None:
    assert disk.results.sentence() == ""
    said = await disk.fails(1, 50 * MIB, FULL)
    assert said == "the server's disk: 50.0 MiB needed, 10.0 MiB may be used"
    await disk.clock.advance(90.0)
    assert disk.results.sentence() == (
        "1 result waits for room on the server's disk: 50.0 MiB needed, 10.0 MiB may be used, "
        "the oldest waits for 1m 30s"
    )
    assert (len(disk.results), disk.results.size, disk.results.oldest_s) == (1, 50 * MIB, 90.0)
    await disk.look(15 * MIB)
    assert await disk.look(-1) == [], "the disk does not answer"
    assert "15.0 MiB may be used" in disk.results.sentence()
    disk.results.done(("node", 1))
    assert (disk.results.sentence(), disk.results.oldest_s) == ("", 0.0)
    await disk.clock.settle()
    assert disk.tried == [1], "it is looked at at once"
    await disk.results.turn(("node", 1))  # waits for nothing


async def test_a_disk_that_refuses_although_it_has_room_is_tried_again_after_a_while(
    disk: Disk,
) -> None:
    """Its inodes are used up: nothing says when there are some again."""
    assert await disk.fails(1, MIB, FULL) == "the server's disk: No space left on device"
    assert "the server's disk: No space left on device, the oldest" in disk.results.sentence()
    assert await disk.look(10 * MIB) == []
    await disk.clock.advance(10.0)
    assert await disk.look(10 * MIB) == [1]


async def test_a_result_of_unknown_size_is_tried_when_there_is_more_than_there_was(
    disk: Disk,
) -> None:
    assert "more is needed, 10.0 MiB may be used" in await disk.fails(1, None, FULL)
    assert await disk.look(10 * MIB) == []
    assert await disk.look(11 * MIB) == [1]
