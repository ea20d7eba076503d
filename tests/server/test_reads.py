"""What callers read: whose turn it is, one read for many, snapshots of running jobs."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from server.http import reads as reads_module
from server.http.problems import Refusal
from server.http.reads import MAX_OF_CALLER, MAX_SNAPSHOTS, Names, Reads, SharedReads, Snapshots
from server.storage.scratch import Scratch, ScratchFile
from shared.files.archives.zip_reader import ListedFile
from shared.http.authentication import CALLER, caller_of
from shared.principals import ANONYMOUS, Principal, Role
from tests.kit.clock import SimClock
from tests.kit.waiting import turns

T = TypeVar("T")


@pytest.fixture
async def reads() -> AsyncIterator[Reads]:
    found = Reads()
    yield found
    found.close()


async def as_caller(name: str, reads: Reads, work: Callable[[], T]) -> T:
    CALLER.set(name)
    return await reads.run(work)


@contextmanager
def blocked():
    """Work that goes on until the end of the block, and what is set when some has begun."""
    begun, end = threading.Semaphore(0), threading.Event()

    def work() -> str:
        begun.release()
        assert end.wait(60), "nobody let it end"
        return "done"

    try:
        yield work, begun
    finally:
        end.set()


async def test_two_read_at_once_whoever_they_are(reads: Reads) -> None:
    with blocked() as (work, begun):
        reading = [asyncio.create_task(as_caller(f"{n}", reads, work)) for n in range(5)]
        for _ in range(2):
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        assert len(reads._threads._threads) == 2  # all have asked
    assert await asyncio.gather(*reading) == ["done"] * 5


async def test_who_leaves_has_its_place_until_its_thread_is_done(reads: Reads) -> None:
    with blocked() as (work, begun):
        ann = [asyncio.create_task(as_caller("ann", reads, work))]
        assert await asyncio.to_thread(begun.acquire, timeout=60)
        ann[0].cancel()
        ann.append(asyncio.create_task(as_caller("ann", reads, work)))
        bob = as_caller("bob", reads, lambda: "read")
        assert await asyncio.wait_for(bob, 60) == "read"
    left, second = await asyncio.gather(*ann, return_exceptions=True)
    assert isinstance(left, asyncio.CancelledError)
    assert second == "done"


async def test_callers_take_turns_whoever_asks_for_more(reads: Reads) -> None:
    order: list[str] = []
    wanted = ["ann"] * 5 + ["bob"]
    with blocked() as (stays, begun):
        busy = [asyncio.create_task(as_caller("cy", reads, stays))]
        assert await asyncio.to_thread(begun.acquire, timeout=60)
        with blocked() as (leaves, begun):
            busy.append(asyncio.create_task(as_caller("dan", reads, leaves)))
            assert await asyncio.to_thread(begun.acquire, timeout=60)
            asked = [as_caller(name, reads, partial(order.append, name)) for name in wanted]
            waiting = [asyncio.create_task(one) for one in asked]
            await asyncio.to_thread(lambda: None)  # all of them have asked
        await asyncio.gather(*waiting)  # in one thread: they cannot overtake each other
    await asyncio.gather(*busy)
    assert order == ["ann", "bob", *["ann"] * 4]  # not behind all that ann asked for before


async def test_a_caller_gets_few_zips_of_batches_at_once_and_others_get_theirs(reads) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(reads.batch_zips.turn())
        with pytest.raises(Refusal, match="4 ZIPs of batches of yours"):
            await stack.enter_async_context(reads.batch_zips.turn())
        CALLER.set("another")
        await stack.enter_async_context(reads.batch_zips.turn())
    assert reads.batch_zips._turns == {}, "nobody is remembered"


def test_tokens_of_a_user_are_one_caller_and_strangers_are_not() -> None:
    laptop, desk = (Principal(name, Role.USER, "ann") for name in ("laptop", "desk"))
    portal = Principal("ann", Role.PORTAL)
    assert caller_of(laptop, "a") == caller_of(desk, "b") != caller_of(portal, "a")
    assert caller_of(ANONYMOUS, "a") != caller_of(ANONYMOUS, "b")


async def test_the_names_that_are_kept_are_bounded(reads: Reads, monkeypatch) -> None:
    monkeypatch.setattr(reads_module, "MOST_NAMES", 2_000)
    for result in ("a", "b", "c"):
        names = Names()
        names.add(ListedFile(f"{result}/{number}", number, 7) for number in range(10))
        reads.keep(result, names)
        assert list(names)[3] == ListedFile(f"{result}/3", 3, 7)
    assert reads.names("a") is None
    assert reads.names("b") is not None
    assert reads.names("c") is not None


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


async def test_those_who_ask_for_the_same_share_a_read():
    shared, source = SharedReads[int](), Source()
    reads = [asyncio.create_task(shared.read(1, "ann", source.read)) for _ in range(5)]
    other = asyncio.create_task(shared.read(1, "bob", source.read))
    await turns(6)
    source.go_on.set()
    assert await asyncio.gather(*reads) == [1] * 5
    assert await other == 2
    assert await shared.read(1, "ann", source.read) == 3, "the next one looks again"


async def test_nobody_joins_a_read_that_began_before_the_last_commit():
    shared, source = SharedReads[int](), Source()
    commits = [1, 2, 2, 2]
    reads = []
    for commit in commits:
        reads.append(asyncio.create_task(shared.read(commit, "ann", source.read)))
        await turns(6)
    reads[1].cancel()  # one that goes away does not end the read of others
    await turns(6)
    source.go_on.set()
    early, _, *late = await asyncio.gather(*reads, return_exceptions=True)
    assert (early, late) == (1, [2, 2])


async def test_what_goes_wrong_is_said_to_all_and_not_kept():
    shared = SharedReads[int]()

    async def fails() -> int:
        raise ValueError("no")

    asked = (shared.read(1, "ann", fails) for _ in range(3))
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(one) for one in found] == ["no"] * 3
    with pytest.raises(ValueError, match="no"):
        await shared.read(1, "ann", fails)


class Rig:
    """Snapshots of jobs, which are made when they may; or it fails half-way."""

    def __init__(self, staging: Path) -> None:
        names = iter(range(1000))
        self.clock, self.staging = SimClock(), staging
        self._snapshots = Snapshots(Scratch(staging, lambda: f"{next(names):032x}"), self.clock)
        self.made, self.may, self.fails = 0, asyncio.Event(), False

    async def _make(self, file: ScratchFile) -> None:
        self.made += 1
        await self.may.wait()
        file.path.write_text(f"snapshot {self.made}")
        if self.fails:
            raise OSError(28, "No space left on device")

    def of(self, job: int) -> AbstractAsyncContextManager[Path]:
        return self._snapshots.snapshot(job, self._make)

    async def read(self, job: int = 1) -> str:
        async with self.of(job) as path:
            return path.read_text()

    def files(self) -> int:
        return len(list(self.staging.iterdir()))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    assert found.files() == 0


async def test_all_who_ask_at_once_get_one_snapshot_whoever_of_them_goes_away(rig: Rig) -> None:
    first, *readers = (asyncio.create_task(rig.read()) for _ in range(20))
    await turns()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    rig.may.set()
    assert set(await asyncio.gather(*readers)) == {"snapshot 1"}
    assert rig.made == 1


async def test_unread_snapshots_of_a_job_do_not_add_up(rig: Rig) -> None:
    rig.may.set()
    async with AsyncExitStack() as stack:
        for _ in range(15):
            await stack.enter_async_context(rig.of(1))
            await rig.clock.advance(60)
        assert rig.files() == 2


async def test_there_are_not_many_of_all_jobs(rig: Rig) -> None:
    rig.may.set()
    async with AsyncExitStack() as stack:
        for job in range(MAX_SNAPSHOTS):
            CALLER.set(f"user {job}")
            await stack.enter_async_context(rig.of(job))
        with pytest.raises(Refusal) as caught:
            await rig.read(99)
        assert (caught.value.status, caught.value.retry_after_s) == (503, 5)
        assert rig.files() == MAX_SNAPSHOTS
        assert await rig.read(1)  # of a job that has one already
    assert await rig.read(99)


async def test_one_caller_leaves_room_for_others(rig: Rig) -> None:
    rig.may.set()
    async with AsyncExitStack() as stack:
        for job in range(MAX_OF_CALLER):
            await stack.enter_async_context(rig.of(job))
        with pytest.raises(Refusal, match="4 snapshots that you asked for"):
            await rig.read(99)
        CALLER.set("another")
        assert await rig.read(99)


async def test_the_last_who_goes_away_ends_the_making(rig: Rig) -> None:
    only = asyncio.create_task(rig.read())
    await turns()
    only.cancel()
    await asyncio.gather(only, return_exceptions=True)
    rig.may.set()
    assert rig.files() == 0
    assert await rig.read() == "snapshot 2"


async def test_a_failure_is_everybodys_and_leaves_nothing(rig: Rig) -> None:
    rig.fails = True
    rig.may.set()
    found = await asyncio.gather(*(rig.read() for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in found] == [OSError] * 3
