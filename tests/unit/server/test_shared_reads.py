"""One read for many listeners, of which none misses what woke it."""

import asyncio

import pytest

from server.http.reads import SharedReads


class Source:
    """What is read; each read waits until it is let go on."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()

    async def read(self) -> int:
        self.begun += 1
        mine = self.begun
        await self.go_on.wait()
        return mine


async def begun(*reads: asyncio.Task[int]) -> None:
    """Let the tasks run until they wait."""
    await asyncio.wait(reads, timeout=0)
    for _ in range(5):
        await asyncio.wait(reads, timeout=0)


async def test_those_who_ask_for_the_same_share_a_read():
    shared, source = SharedReads[int](), Source()
    reads = [asyncio.create_task(shared.read(1, "ann", source.read)) for _ in range(5)]
    other = asyncio.create_task(shared.read(1, "bob", source.read))
    await begun(*reads, other)
    source.go_on.set()
    assert await asyncio.gather(*reads) == [1] * 5
    assert await other == 2
    assert await shared.read(1, "ann", source.read) == 3, "the next one looks again"


async def test_nobody_joins_a_read_that_began_before_the_last_commit():
    shared, source = SharedReads[int](), Source()
    early = asyncio.create_task(shared.read(1, "ann", source.read))
    await begun(early)
    late = [asyncio.create_task(shared.read(2, "ann", source.read)) for _ in range(2)]
    await begun(*late)
    source.go_on.set()
    assert await early == 1
    assert await asyncio.gather(*late) == [2, 2]


async def test_a_listener_that_goes_away_does_not_end_the_read_of_others():
    shared, source = SharedReads[int](), Source()
    first = asyncio.create_task(shared.read(1, "ann", source.read))
    await begun(first)
    second = asyncio.create_task(shared.read(1, "ann", source.read))
    await begun(second)
    first.cancel()
    await begun(first)
    source.go_on.set()
    assert await second == 1


async def test_what_goes_wrong_is_said_to_all_and_not_kept():
    shared = SharedReads[int]()

    async def fails() -> int:
        raise ValueError("no")

    found = await asyncio.gather(
        *(shared.read(1, "ann", fails) for _ in range(3)), return_exceptions=True
    )
    assert [str(one) for one in found] == ["no"] * 3
    with pytest.raises(ValueError, match="no"):
        await shared.read(1, "ann", fails)
