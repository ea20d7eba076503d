"""What is counted is written each minute, and what services did lately is read from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest

from server.domain.choose import Recent
from server.domain.statistics import ALL, Tree
from server.ports import Held, Measures
from server.stages.statistics import Statistics
from server.store.statistics import SqlStatistics
from shared.clock import SECOND, Micros
from tests.kit.clock import SimClock
from tests.kit.stage_resources import resources

HOUR = 3_600 * SECOND


class Numbers:
    """What was written, and the jobs of now."""

    def __init__(self) -> None:
        self.written: list[Mapping[tuple[Micros, str], Tree]] = []
        self.broken = False
        self.lately: dict[Micros, Tree] = {}
        self.users: dict[str, int] = {"ann": 3}
        self.reads = 0

    async def add(self, counted: Mapping[tuple[Micros, str], Tree], before: Micros) -> None:
        if self.broken:
            raise OSError
        self.written.append(counted)

    async def read(
        self, since: Micros, services: Collection[str]
    ) -> list[tuple[Micros, str, Tree]]:
        self.reads += 1
        found = self.lately if services == ("s",) else {}
        return [(at, "s", counts) for at, counts in found.items() if at >= since]

    async def queued(self) -> dict[str, tuple[int, Micros | None]]:
        return {"s": (4, None)}

    async def held(self) -> list[Held]:
        return [Held("s", "ann", "node", 3, 2)]

    async def waiting_users(self, service: str, most: int, most_jobs: int) -> dict[str, int]:
        return self.users


def statistics_of(
    numbers: Numbers, clock: SimClock, measures: Measures | None = None
) -> Statistics:
    both: Any = numbers
    how = resources(jobs=both, clock=clock, measures=measures or Measures())
    return Statistics(how, cast("SqlStatistics", both))


async def test_what_was_counted_is_written_once_with_how_things_are() -> None:
    clock, numbers, measures = SimClock(), Numbers(), Measures()
    statistics = statistics_of(numbers, clock, measures)
    measures.jobs.uploaded(clock.now(), "s", 2, size=9)
    await statistics.run_once()
    (written,) = numbers.written
    at = clock.now() - clock.now() % (600 * SECOND)
    assert written == {
        (at, ALL): {
            "uploaded": 2,
            "uploaded_bytes": 9,
            "samples": 1,
            "queued": 4,
            "running": 2,
        },
        (at, "s"): {"uploaded": 2, "uploaded_bytes": 9, "queued": 4, "running": 2},
    }
    await statistics.stop()
    assert numbers.written[1] == {}


async def test_what_could_not_be_written_is_written_later() -> None:
    clock, numbers, measures = SimClock(), Numbers(), Measures()
    statistics = statistics_of(numbers, clock, measures)
    measures.jobs.uploaded(clock.now(), "s")
    numbers.broken = True
    with pytest.raises(OSError):  # noqa: PT011 - the fake's
        await statistics.stop()
    numbers.broken = False
    measures.jobs.uploaded(clock.now(), "s")
    await statistics.stop()
    assert {one["uploaded"] for one in numbers.written[0].values()} == {2}


async def test_it_is_done_when_a_minute_begins() -> None:
    clock = SimClock()
    await clock.advance(60 - clock.now() / SECOND % 60 + 5)
    assert statistics_of(Numbers(), clock).until_next_s() == 55


def runs(count: int, seconds: int) -> Tree:
    return {"runs": count, "ran_us": count * seconds * SECOND}


async def test_the_hour_counts_or_the_day_where_few_runs_ended_in_it() -> None:
    clock, numbers = SimClock(), Numbers()
    now = clock.now()
    numbers.lately = {now: runs(4, 10), now - HOUR // 2: runs(1, 60), now - 5 * HOUR: runs(90, 30)}
    assert await statistics_of(numbers, clock).recent("s") == Recent(20.0, {"ann": 3})
    numbers.lately = {now: runs(4, 10), now - 5 * HOUR: runs(4, 30)}
    assert await statistics_of(numbers, clock).recent("s") == Recent(20.0, {"ann": 3})


async def test_without_five_runs_nothing_is_known() -> None:
    clock, numbers = SimClock(), Numbers()
    numbers.lately = {clock.now(): runs(4, 10), clock.now() - 25 * HOUR: runs(9, 10)}
    statistics = statistics_of(numbers, clock)
    assert (await statistics.recent("s")).run_time_s is None
    assert (await statistics.recent("other")).run_time_s is None


async def test_where_more_users_wait_than_are_counted_that_is_not_known() -> None:
    clock, numbers = SimClock(), Numbers()
    numbers.lately = {clock.now(): runs(5, 10)}
    numbers.users = {f"user{n}": 1 for n in range(101)}
    assert (await statistics_of(numbers, clock).recent("s")).waiting is None


async def test_it_is_read_once_a_minute_however_often_it_is_asked_for() -> None:
    clock, numbers = SimClock(), Numbers()
    numbers.lately = {clock.now(): runs(5, 10)}
    statistics = statistics_of(numbers, clock)
    for _ in range(3):
        await statistics.recent("s")
    await clock.advance(59.0)
    await statistics.recent("s")
    assert numbers.reads == 1
    await clock.advance(2.0)
    numbers.lately = {clock.now(): runs(5, 20)}
    assert (await statistics.recent("s")).run_time_s == 20.0
    assert numbers.reads == 2
