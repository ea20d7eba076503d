"""What happened when: counted in memory as it happens, and written each minute for the charts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from server.domain.choose import LEAST_RUNS, Recent
from server.domain.errors import NoSuchService
from server.domain.statistics import ALL, KEPT_S, Tree, add, begin_of
from server.stages.stage import Core, Stage
from server.store import changes, statistics, users
from shared.clock import SECOND, Micros
from shared.wire import JobState

Period: TypeAlias = Literal["day", "week"]
PERIODS: Final[Mapping[Period, tuple[int, int]]] = {
    "day": (86_400, 600),
    "week": (7 * 86_400, 3_600),
}
"""How many seconds a chart shows, and how many of them a point has."""
_MINUTE_S: Final = 60
_DAY_S: Final = 86_400
_RECENT_S: Final = (3_600, _DAY_S)
"""The latest hour, or the day, where few runs ended in it."""
_GOOD_FOR_S: Final = 60.0
_USERS, _JOBS_OF_USER = 100, 1_000


@dataclass(frozen=True, slots=True)
class Point:
    """What happened in the time from ``at``, and how often the server looked at the gauges."""

    at: Micros
    samples: int
    numbers: Tree


@dataclass(frozen=True, slots=True)
class History:
    """What a page with charts shows.

    Attributes:
        services: those that can be chosen.
        points: oldest first. A time in which the server did not run has none.
    """

    services: Sequence[str]
    step_s: int
    total: Tree
    points: Sequence[Point]


class Statistics(Stage):
    """Writes, and reads for the charts and for the estimates of starts."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._counts = core.measures.jobs
        self._recent: dict[str, tuple[float, Recent]] = {}

    async def run_once(self) -> int:
        """Write what was counted, and how many jobs wait and run now."""
        at = begin_of(self.core.clock.now())
        for service, numbers in (await self._gauges()).items():
            self._counts.add(at, service, dict(numbers))
        return await self.write()

    def until_next_s(self) -> float:
        """Until a new minute begins."""
        return _MINUTE_S - self.core.clock.now() % (_MINUTE_S * SECOND) / SECOND

    async def write(self) -> int:
        """Write what was counted since the last call."""
        taken = self._counts.take()
        try:
            before = self.core.clock.now() - KEPT_S * SECOND
            await self.core.database.write(statistics.add_counted, taken, before)
        except Exception:  # what is cancelled is written all the same
            for (at, service), counts in taken.items():
                self._counts.add(at, service, counts)
            raise
        return len(taken)

    async def _gauges(self) -> Mapping[str, Counter[str]]:
        found: defaultdict[str, Counter[str]] = defaultdict(Counter, {ALL: Counter(samples=1)})
        counted = await changes.totals_of(self.core.database)
        for service, jobs in dict(counted.services).items():
            for name in (ALL, service):
                found[name]["queued"] += jobs
        for (service, _, _, state), jobs in dict(counted.slots).items():
            for name in (ALL, service):
                found[name]["running"] += jobs if state is JobState.RUNNING else 0
        return found

    async def last_day(self) -> tuple[int, int]:
        """Jobs that were uploaded in it, and bytes of bundles and results that were stored."""
        total = await self._total(ALL, _DAY_S)
        return total.get("uploaded", 0), total.get("uploaded_bytes", 0) + total.get(
            "result_bytes", 0
        )

    async def read(self, period: Period, service: str | None) -> History:
        """What happened when. Raises NoSuchService."""
        if service is not None and service not in self.core.services:
            raise NoSuchService(service)
        seconds, step_s = PERIODS[period]
        since = begin_of(self.core.clock.now() - seconds * SECOND, step_s)
        samples, numbers = Counter[Micros](), defaultdict[Micros, Tree](dict)
        total: Tree = {}
        for at, name, counts in await self._buckets(since, ALL, service or ALL):
            begin = begin_of(at, step_s)
            if name == ALL:
                samples[begin] += counts.get("samples", 0)
            if name == (service or ALL):
                add(numbers[begin], counts)
                add(total, counts)
        points = [Point(at, samples[at], numbers[at]) for at in sorted(samples)]
        return History(sorted(self.core.services), step_s, total, points)

    async def recent(self, service: str) -> Recent:
        """What the service did lately; a minute old at most."""
        now = self.core.clock.monotonic()
        until, known = self._recent.get(service, (now, Recent()))
        if until <= now:
            known = await self._read_recent(service)
            self._recent[service] = now + _GOOD_FOR_S, known
        return known

    async def _read_recent(self, service: str) -> Recent:
        for seconds in _RECENT_S:
            total = await self._total(service, seconds)
            if total.get("runs", 0) >= LEAST_RUNS:
                waiting = await self.core.database.read_list(
                    users.waiting, service, _USERS + 1, _JOBS_OF_USER
                )
                run_time_s = total["ran_us"] / SECOND / total["runs"]
                return Recent(run_time_s, waiting if len(waiting) <= _USERS else None)
        return Recent()

    async def _total(self, service: str, seconds: int) -> Tree:
        total: Tree = {}
        since = begin_of(self.core.clock.now() - seconds * SECOND)
        for _, _, counts in await self._buckets(since, service):
            add(total, counts)
        return total

    async def _buckets(self, since: Micros, *services: str) -> list[tuple[Micros, str, Tree]]:
        return await self.core.database.read_list(statistics.buckets, since, services)
