"""Prepared workspaces: who gets them, how many there are, and when they are removed."""

from __future__ import annotations

import pytest

from client_agent.sandbox.base import Ahead, SandboxBroken
from client_agent.sandbox.bubblewrap.stock import LIFETIME_S, Stock
from client_agent.sandbox.grants import Grant
from shared.wire import Limits
from tests.support.real_sandbox import turns
from tests.support.sim_clock import SimClock

KIND = Limits(), Ahead(("bash", "run.sh"), {}, 0.0)


class FakeWorkspace:
    def __init__(self, stocked: Stocked, name: str, uid: int | None) -> None:
        self.name, self.uid, self.usable, self._stocked = name, uid, True, stocked

    async def destroy(self) -> None:
        self._stocked.made.remove(self)
        self._stocked.stock.release(self.uid)


class Stocked:
    """A stock, and what was made for it."""

    def __init__(self, most: int = 2, uids: tuple[int, ...] = ()) -> None:
        self.clock = SimClock()
        self.made: list[FakeWorkspace] = []
        self.problem: Exception | None = None
        self.stock: Stock[FakeWorkspace] = Stock(self._make, self.clock, most, uids)

    async def _make(self, name: str, uid: int | None, *_: object) -> FakeWorkspace:
        await turns()
        if self.problem is not None:
            raise self.problem
        self.made.append(FakeWorkspace(self, name, uid))
        return self.made[-1]

    async def refill(self, times: int = 1, kind: tuple[Limits, Ahead] = KIND) -> None:
        for _ in range(times):
            self.stock.refill(*kind)
        await self.clock.settle()


async def test_each_is_taken_once() -> None:
    stocked = Stocked()
    assert stocked.stock.take(*KIND) is None
    await stocked.refill()
    assert stocked.stock.take(*KIND) is stocked.made[0]
    assert stocked.stock.take(*KIND) is None
    await stocked.stock.close()


@pytest.mark.parametrize(
    "other",
    [
        (Limits(pids=7), KIND[1]),
        (Limits(network=True), KIND[1]),
        (KIND[0], Ahead(("bash", "other.sh"), {}, 0.0)),
        (KIND[0], Ahead(("bash", "run.sh"), {"A": "1"}, 0.0)),
        (KIND[0], Ahead(("bash", "run.sh"), {}, 9.0)),
        (KIND[0], Ahead(("bash", "run.sh"), {}, 0.0, Grant(network=True))),
        (KIND[0], Ahead(("bash", "run.sh"), {}, 0.0, Grant(allow=frozenset({"inotify"})))),
        (KIND[0], Ahead(("bash", "run.sh"), {}, 0.0, Grant(env={"A": "1"}))),
        (KIND[0], Ahead(("bash", "run.sh"), {}, 0.0, Grant(scratch=1))),
    ],
)
async def test_only_the_same_limits_and_the_same_launch_take_it(
    other: tuple[Limits, Ahead],
) -> None:
    stocked = Stocked()
    await stocked.refill()
    assert stocked.stock.take(*other) is None
    assert stocked.stock.take(Limits(), Ahead(("bash", "run.sh"), {}, 0.0)) is not None
    await stocked.stock.close()


async def test_there_are_never_more_than_allowed() -> None:
    stocked = Stocked(most=2)
    await stocked.refill(5)
    assert len(stocked.made) == 2
    await stocked.stock.close()
    assert stocked.made == []
    await stocked.refill()
    assert stocked.made == [], "it is closed"


async def test_another_kind_replaces_the_oldest() -> None:
    stocked = Stocked(most=2)
    await stocked.refill(2)
    first = list(stocked.made)
    other = Limits(pids=7), KIND[1]
    await stocked.refill(kind=other)
    assert stocked.made[0] is first[1]
    assert stocked.stock.take(*other) is stocked.made[1]
    await stocked.stock.close()


async def test_what_nobody_takes_is_removed_after_a_minute() -> None:
    stocked = Stocked()
    await stocked.refill()
    await stocked.clock.advance(LIFETIME_S / 2)
    await stocked.refill()
    await stocked.clock.advance(LIFETIME_S / 2)
    assert len(stocked.made) == 1
    await stocked.clock.advance(LIFETIME_S / 2)
    assert stocked.made == []
    assert stocked.clock.sleeping == 0
    await stocked.refill()
    await stocked.clock.advance(LIFETIME_S)
    assert stocked.made == []
    await stocked.stock.close()


async def test_what_is_not_as_good_as_new_is_removed() -> None:
    stocked = Stocked()
    await stocked.refill(2)
    stocked.made[0].usable = False
    second = stocked.made[1]
    assert stocked.stock.take(*KIND) is second
    await stocked.clock.settle()
    assert stocked.made == [second]
    await stocked.stock.close()


async def test_each_has_a_uid_until_it_is_removed() -> None:
    stocked = Stocked(most=2, uids=(7, 8, 9))
    await stocked.refill(2)
    assert [one.uid for one in stocked.made] == [7, 8]
    taken = stocked.stock.take(*KIND)
    assert taken is not None
    await stocked.refill()
    assert stocked.stock.take(*KIND) is not None
    await stocked.refill()
    assert [one.uid for one in stocked.made] == [7, 8, 9], "no uid is left"
    await taken.destroy()
    await stocked.refill()
    assert stocked.made[-1].uid == 7
    await stocked.stock.close()


@pytest.mark.parametrize("problem", [SandboxBroken("x"), OSError(28, "full")])
async def test_what_cannot_be_prepared_is_left_to_the_next_job(problem: Exception) -> None:
    stocked = Stocked(most=1, uids=(7,))
    stocked.problem = problem
    await stocked.refill()
    assert stocked.stock.take(*KIND) is None
    stocked.problem = None
    await stocked.refill()
    assert [one.uid for one in stocked.made] == [7]
    await stocked.stock.close()


async def test_calls_at_the_same_time_share_the_last_uid() -> None:
    """The one that gets none leaves nothing behind."""
    stocked = Stocked(most=2, uids=(7, 8))
    await stocked.refill()
    assert stocked.stock.take(*KIND) is not None
    await stocked.refill(2)
    assert [one.uid for one in stocked.made] == [7, 8]
    assert stocked.stock.take(*KIND) is not None
    for taken in list(stocked.made):
        await taken.destroy()
    await stocked.refill(2)
    assert [one.uid for one in stocked.made] == [7, 8]
    await stocked.stock.close()


@pytest.mark.parametrize("problem", [SandboxBroken("x"), OSError(24, "too many open files")])
async def test_a_job_for_which_something_is_short_gets_what_prepared_starts_have(
    problem: Exception,
) -> None:
    stocked = Stocked(most=2)
    await stocked.refill()
    stocked.stock.refill(*KIND)  # and one that is being made

    async def make() -> int:
        if stocked.made:
            raise problem
        return 5

    assert await stocked.stock.make_room(make) == 5
    await stocked.refill()
    assert len(stocked.made) == 1
    await stocked.stock.close()


async def test_what_fails_without_prepared_starts_fails_once() -> None:
    stocked, calls = Stocked(), []

    async def make() -> None:
        calls.append(1)
        raise SandboxBroken("x")

    with pytest.raises(SandboxBroken):
        await stocked.stock.make_room(make)
    assert len(calls) == 1
    await stocked.refill()
    with pytest.raises(SandboxBroken):
        await stocked.stock.make_room(make)
    assert len(calls) == 3
    await stocked.stock.close()
