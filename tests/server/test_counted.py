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
        self.clock, self.measures = SimClock(), Measures()
        self.written: list[Mapping[tuple[Micros, str], Tree]] = []
        self.broken = False
        self.lately: dict[Micros, Tree] = {}
        self.reads = 0
        both: Any = self
        how = resources(jobs=both, clock=self.clock, measures=self.measures)
        self.statistics = Statistics(how, cast("SqlStatistics", both))

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
        return {"ann": 3}


async def test_what_was_counted_is_written_once_or_later_where_it_cannot_be() -> None:
    numbers = Numbers()
    statistics, now = numbers.statistics, numbers.clock.now()
    numbers.measures.jobs.uploaded(now, "s", 2, size=9)
    await statistics.run_once()
    counted = {"uploaded": 2, "uploaded_bytes": 9, "queued": 4, "running": 2}
    at = now - now % (600 * SECOND)
    assert numbers.written == [{(at, ALL): {"samples": 1, **counted}, (at, "s"): counted}]
    await statistics.stop()
    assert numbers.written[1] == {}
    numbers.measures.jobs.uploaded(now, "s")
    numbers.broken = True
    with pytest.raises(OSError):  # noqa: PT011 - the fake's
        await statistics.stop()
    numbers.broken = False
    numbers.measures.jobs.uploaded(now, "s")
    await statistics.stop()
    assert {one["uploaded"] for one in numbers.written[2].values()} == {2}
    await numbers.clock.advance(60 - now / SECOND % 60 + 5)
    assert statistics.until_next_s() == 55, "when a minute begins"


def runs(count: int, seconds: int) -> Tree:
    return {"runs": count, "ran_us": count * seconds * SECOND}


async def test_the_hour_counts_or_the_day_and_nothing_is_known_of_few_runs() -> None:
    now = SimClock().now()
    for lately, run_time_s in (
        ({0: runs(4, 10), HOUR // 2: runs(1, 60), 5 * HOUR: runs(90, 30)}, 20.0),
        ({0: runs(4, 10), 5 * HOUR: runs(4, 30)}, 20.0),
        ({0: runs(4, 10), 25 * HOUR: runs(9, 10)}, None),
    ):
        numbers = Numbers()
        numbers.lately = {now - ago: tree for ago, tree in lately.items()}
        found = await numbers.statistics.recent("s")
        assert found.run_time_s == run_time_s
        assert run_time_s is None or found == Recent(run_time_s, {"ann": 3})
        assert (await numbers.statistics.recent("other")).run_time_s is None


async def test_it_is_read_once_a_minute_however_often_it_is_asked_for() -> None:
    numbers = Numbers()
    now = numbers.clock.now()
    numbers.lately = {now: runs(5, 10)}
    for seconds in (0.0, 0.0, 59.0):
        await numbers.clock.advance(seconds)
        await numbers.statistics.recent("s")
    assert numbers.reads == 1
    await numbers.clock.advance(2.0)
    numbers.lately = {now: runs(5, 20)}
    assert (await numbers.statistics.recent("s")).run_time_s == 20.0
    assert numbers.reads == 2
