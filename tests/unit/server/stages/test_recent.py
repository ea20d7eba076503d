"""What services did lately: read seldom, and only where it says something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from server.domain.expected_start import Recent
from server.domain.statistics import Resolution, Tree
from server.ports import Jobs
from server.ports.statistics import Bucket, StatisticsRecords
from server.stages.recent import RecentServices
from shared.clock import SECOND, Micros
from tests.support.sim_clock import SimClock


def runs(count: int, seconds: int) -> Tree:
    return {"run": {"count": count, "sum_us": count * seconds * SECOND, "buckets": {}}}


class Numbers:
    """Of one service: those of the hour, and those of the day."""

    def __init__(self, hour: Sequence[Tree] = (), day: Sequence[Tree] = ()) -> None:
        self.hour, self.day = hour, day
        self.users: dict[str, int] = {"ann": 3}
        self.reads = 0

    async def buckets(
        self, resolution: Resolution, since: Micros, until: Micros, service: str
    ) -> list[Bucket]:
        self.reads += 1
        hours = (until - since) / 3_600 / SECOND
        assert 1 <= hours <= 25.1
        found = {600: self.hour, 3_600: self.day}[resolution.seconds] if service == "s" else ()
        return [Bucket(since, 1, numbers) for numbers in found]

    async def waiting_users(self, service: str, most: int, most_jobs: int) -> dict[str, int]:
        return self.users


def recent_of(numbers: Numbers, clock: SimClock) -> RecentServices:
    both: Any = numbers
    return RecentServices(cast("Jobs", both), cast("StatisticsRecords", both), clock)


async def test_the_hour_counts_or_the_day_where_few_runs_ended_in_it() -> None:
    clock, day = SimClock(), [runs(90, 30), {"started": 3}]
    many = recent_of(Numbers([runs(4, 10), {}, runs(1, 60)], day), clock)
    assert await many.of("s") == Recent(20.0, {"ann": 3})
    few = recent_of(Numbers([runs(4, 10)], day), clock)
    assert await few.of("s") == Recent(30.0, {"ann": 3})


async def test_without_five_runs_nothing_is_known() -> None:
    recent = recent_of(Numbers([runs(4, 10)], [runs(4, 10)]), SimClock())
    assert (await recent.of("s")).run_time_s is None
    assert (await recent.of("other")).run_time_s is None


async def test_where_more_users_wait_than_are_counted_that_is_not_known() -> None:
    numbers = Numbers([runs(5, 10)])
    numbers.users = {f"user{n}": 1 for n in range(101)}
    assert (await recent_of(numbers, SimClock()).of("s")).waiting is None


async def test_it_is_read_once_a_minute_however_often_it_is_asked_for() -> None:
    clock, numbers = SimClock(), Numbers([runs(5, 10)])
    recent = recent_of(numbers, clock)
    for _ in range(3):
        await recent.of("s")
    await clock.advance(59.0)
    await recent.of("s")
    assert numbers.reads == 1
    await clock.advance(2.0)
    numbers.hour = [runs(5, 20)]
    assert (await recent.of("s")).run_time_s == 20.0
    assert numbers.reads == 2
