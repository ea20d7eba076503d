"""Prepared workspaces: who gets them, how many there are, and when they are removed."""

from __future__ import annotations

import pytest

from client_agent.sandbox.base import Ahead, Grant, SandboxBroken
from client_agent.sandbox.bubblewrap.prepared_starts import LIFETIME_S, PreparedStarts
from shared.wire import Limits
from tests.kit.clock import SimClock
from tests.kit.real_sandbox import turns

KIND = Limits(), Ahead(("bash", "run.sh"), {}, 0.0)


class FakeWorkspace:
    def __init__(self, prepared: Prepared, name: str, uid: int | None) -> None:
        self.name, self.uid, self.usable, self._prepared = name, uid, True, prepared

    async def destroy(self) -> None:
        self._prepared.made.remove(self)
        self._prepared.starts.release(self.uid)


class Prepared:
    """Prepared starts, and what was made for them."""

    def __init__(self, most: int = 2, uids: tuple[int, ...] = ()) -> None:
        self.clock = SimClock()
        self.made: list[FakeWorkspace] = []
        self.problem: Exception | None = None
        self.starts: PreparedStarts[FakeWorkspace] = PreparedStarts(
            self._make, self.clock, most, uids
        )

    async def _make(self, name: str, uid: int | None, *_: object) -> FakeWorkspace:
        await turns()
        if self.problem is not None:
            raise self.problem
        self.made.append(FakeWorkspace(self, name, uid))
        return self.made[-1]

    async def refill(self, times: int = 1, kind: tuple[Limits, Ahead] = KIND) -> None:
        for _ in range(times):
            self.starts.refill(*kind)
        await self.clock.settle()


async def test_each_is_taken_once() -> None:
    prepared = Prepared()
    assert prepared.starts.take(*KIND) is None
    await prepared.refill()
    assert prepared.starts.take(*KIND) is prepared.made[0]
    assert prepared.starts.take(*KIND) is None
    await prepared.starts.close()


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
    prepared = Prepared()
    await prepared.refill()
    assert prepared.starts.take(*other) is None
    assert prepared.starts.take(Limits(), Ahead(("bash", "run.sh"), {}, 0.0)) is not None
    await prepared.starts.close()


async def test_there_are_never_more_than_allowed() -> None:
    prepared = Prepared(most=2)
    await prepared.refill(5)
    assert len(prepared.made) == 2
    await prepared.starts.close()
    assert prepared.made == []
    await prepared.refill()
    assert prepared.made == [], "it is closed"


async def test_another_kind_replaces_the_oldest() -> None:
    prepared = Prepared(most=2)
    await prepared.refill(2)
    first = list(prepared.made)
    other = Limits(pids=7), KIND[1]
    await prepared.refill(kind=other)
    assert prepared.made[0] is first[1]
    assert prepared.starts.take(*other) is prepared.made[1]
    await prepared.starts.close()


async def test_what_nobody_takes_is_removed_after_a_minute() -> None:
    prepared = Prepared()
    await prepared.refill()
    await prepared.clock.advance(LIFETIME_S / 2)
    await prepared.refill()
    await prepared.clock.advance(LIFETIME_S / 2)
    assert len(prepared.made) == 1
    await prepared.clock.advance(LIFETIME_S / 2)
    assert prepared.made == []
    assert prepared.clock.sleeping == 0
    await prepared.refill()
    await prepared.clock.advance(LIFETIME_S)
    assert prepared.made == []
    await prepared.starts.close()


async def test_what_is_not_as_good_as_new_is_removed() -> None:
    prepared = Prepared()
    await prepared.refill(2)
    prepared.made[0].usable = False
    second = prepared.made[1]
    assert prepared.starts.take(*KIND) is second
    await prepared.clock.settle()
    assert prepared.made == [second]
    await prepared.starts.close()


async def test_each_has_a_uid_until_it_is_removed() -> None:
    prepared = Prepared(most=2, uids=(7, 8, 9))
    await prepared.refill(2)
    assert [one.uid for one in prepared.made] == [7, 8]
    taken = prepared.starts.take(*KIND)
    assert taken is not None
    await prepared.refill()
    assert prepared.starts.take(*KIND) is not None
    await prepared.refill()
    assert [one.uid for one in prepared.made] == [7, 8, 9], "no uid is left"
    await taken.destroy()
    await prepared.refill()
    assert prepared.made[-1].uid == 7
    await prepared.starts.close()


@pytest.mark.parametrize("problem", [SandboxBroken("x"), OSError(28, "full")])
async def test_what_cannot_be_prepared_is_left_to_the_next_job(problem: Exception) -> None:
    prepared = Prepared(most=1, uids=(7,))
    prepared.problem = problem
    await prepared.refill()
    assert prepared.starts.take(*KIND) is None
    prepared.problem = None
    await prepared.refill()
    assert [one.uid for one in prepared.made] == [7]
    await prepared.starts.close()


async def test_calls_at_the_same_time_share_the_last_uid() -> None:
    """The one that gets none leaves nothing behind."""
    prepared = Prepared(most=2, uids=(7, 8))
    await prepared.refill()
    assert prepared.starts.take(*KIND) is not None
    await prepared.refill(2)
    assert [one.uid for one in prepared.made] == [7, 8]
    assert prepared.starts.take(*KIND) is not None
    for taken in list(prepared.made):
        await taken.destroy()
    await prepared.refill(2)
    assert [one.uid for one in prepared.made] == [7, 8]
    await prepared.starts.close()


@pytest.mark.parametrize("problem", [SandboxBroken("x"), OSError(24, "too many open files")])
async def test_a_job_for_which_something_is_short_gets_what_prepared_starts_have(
    problem: Exception,
) -> None:
    prepared = Prepared(most=2)
    await prepared.refill()
    prepared.starts.refill(*KIND)  # and one that is being made

    async def make() -> int:
        if prepared.made:
            raise problem
        return 5

    assert await prepared.starts.make_room(make) == 5
    await prepared.refill()
    assert len(prepared.made) == 1
    await prepared.starts.close()


async def test_what_fails_without_prepared_starts_fails_once() -> None:
    prepared, calls = Prepared(), []

    async def make() -> None:
        calls.append(1)
        raise SandboxBroken("x")

    with pytest.raises(SandboxBroken):
        await prepared.starts.make_room(make)
    assert len(calls) == 1
    await prepared.refill()
    with pytest.raises(SandboxBroken):
        await prepared.starts.make_room(make)
    assert len(calls) == 3
    await prepared.starts.close()
