"""Snapshots of running jobs: shared, and not many at a time."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from server.http.problems import Refusal
from server.http.reads import MAX_OF_CALLER, MAX_SNAPSHOTS, Snapshots
from server.storage.scratch import Scratch
from shared.http.authentication import CALLER
from tests.kit.clock import SimClock


async def turns() -> None:
    """Let everything that is ready run."""
    await SimClock().sleep(0)


class Making:
    """Writes a snapshot when it may."""

    def __init__(self) -> None:
        self.made = 0
        self.may = asyncio.Event()

    async def __call__(self, file) -> None:
        self.made += 1
        await self.may.wait()
        file.path.write_text(f"snapshot {self.made}")


@pytest.fixture
def rig(tmp_path):
    names = iter(range(1000))
    clock = SimClock()
    snapshots = Snapshots(Scratch(tmp_path, lambda: f"{next(names):032x}"), clock)
    return snapshots, Making(), clock, tmp_path


async def read(snapshots, job, make, hold=None):
    async with snapshots.snapshot(job, make) as path:
        text = path.read_text()
        if hold is not None:
            await hold.wait()
        return text


async def test_all_who_ask_at_once_get_one_snapshot(rig):
    snapshots, make, _, staging = rig
    readers = [asyncio.create_task(read(snapshots, 1, make)) for _ in range(20)]
    await turns()
    make.may.set()
    assert set(await asyncio.gather(*readers)) == {"snapshot 1"}
    assert make.made == 1
    assert list(staging.iterdir()) == []


async def test_unread_snapshots_of_a_job_do_not_add_up(rig):
    snapshots, make, clock, staging = rig
    make.may.set()
    hold = asyncio.Event()
    readers = []
    for _ in range(15):
        readers.append(asyncio.create_task(read(snapshots, 1, make, hold)))
        await turns()
        await clock.advance(60)
    assert len(list(staging.iterdir())) == 2
    hold.set()
    await asyncio.gather(*readers)
    assert list(staging.iterdir()) == []


async def test_there_are_not_many_of_all_jobs(rig):
    snapshots, make, _, staging = rig
    make.may.set()
    async with AsyncExitStack() as stack:
        for job in range(MAX_SNAPSHOTS):
            CALLER.set(f"user {job}")
            await stack.enter_async_context(snapshots.snapshot(job, make))
        with pytest.raises(Refusal) as caught:
            await read(snapshots, 99, make)
        assert (caught.value.status, caught.value.retry_after_s) == (503, 5)
        assert len(list(staging.iterdir())) == MAX_SNAPSHOTS
        assert await read(snapshots, 1, make)  # of a job that has one already
    assert await read(snapshots, 99, make)
    assert list(staging.iterdir()) == []


async def test_one_caller_leaves_room_for_others(rig):
    snapshots, make, _, staging = rig
    make.may.set()
    async with AsyncExitStack() as stack:
        for job in range(MAX_OF_CALLER):
            await stack.enter_async_context(snapshots.snapshot(job, make))
        with pytest.raises(Refusal, match="4 snapshots that you asked for"):
            await read(snapshots, 99, make)
        CALLER.set("another")
        assert await read(snapshots, 99, make)
    assert list(staging.iterdir()) == []


async def test_one_who_goes_away_takes_nothing_from_the_others(rig):
    snapshots, make, _, staging = rig
    first = asyncio.create_task(read(snapshots, 1, make))
    second = asyncio.create_task(read(snapshots, 1, make))
    await turns()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    make.may.set()
    assert await second == "snapshot 1"
    assert list(staging.iterdir()) == []


async def test_the_last_who_goes_away_ends_the_making(rig):
    snapshots, make, _, staging = rig
    only = asyncio.create_task(read(snapshots, 1, make))
    await turns()
    only.cancel()
    await asyncio.gather(only, return_exceptions=True)
    make.may.set()
    assert list(staging.iterdir()) == []
    assert await read(snapshots, 1, make) == "snapshot 2"


async def test_a_failure_is_everybodys_and_leaves_nothing(rig):
    snapshots, _, _, staging = rig

    async def fails(file) -> None:
        file.path.write_text("half")
        raise OSError(28, "No space left on device")

    readers = [asyncio.create_task(read(snapshots, 1, fails)) for _ in range(3)]
    assert {type(one) for one in await asyncio.gather(*readers, return_exceptions=True)} == {
        OSError
    }
    assert list(staging.iterdir()) == []
