"""Threads for what callers read: whose turn it is."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import TypeVar

import pytest

from server.http import reads as reads_module
from server.http.problems import Refusal
from server.http.reads import Each, Names, Reads
from shared.files.archives.zip_index import ListedFile
from shared.http.authentication import CALLER, caller_of
from shared.principals import ANONYMOUS, Principal, Role

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


async def test_a_caller_with_too_many_searches_is_sent_away_and_others_are_not() -> None:
    searches = Each(1, 2, "too_many_searches", "searches")
    end, refused = asyncio.Event(), asyncio.Event()

    async def search(name: str) -> str:
        CALLER.set(name)
        try:
            async with searches.turn():
                await end.wait()
                return "found"
        except Refusal as refusal:
            refused.set()
            return f"{refusal.status} {refusal.code} {refusal.retry_after_s}"

    ann = [asyncio.create_task(search("ann")) for _ in range(4)]
    await asyncio.wait_for(refused.wait(), 60)
    bob = asyncio.create_task(search("bob"))
    end.set()
    answers = await asyncio.gather(*ann)
    assert answers == ["found", "found", "found", "429 too_many_searches 5"]
    assert await bob == "found"
    assert searches._turns == {}


async def test_a_caller_gets_few_zips_of_batches_at_once_and_others_get_theirs(reads) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(reads.batch_zips.turn())
        with pytest.raises(Refusal, match="4 ZIPs of batches of yours"):
            await stack.enter_async_context(reads.batch_zips.turn())
        CALLER.set("another")
        await stack.enter_async_context(reads.batch_zips.turn())


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
