"""What services did lately, by which the start of queued jobs is estimated."""

from __future__ import annotations

from typing import Final

from server.domain.expected_start import LEAST_RUNS, Recent
from server.domain.statistics import RESOLUTIONS, Resolution, Tree, add
from server.ports import Jobs
from server.ports.statistics import StatisticsRecords
from shared.clock import SECOND, Clock

_GOOD_FOR_S: Final = 60.0
_, _TEN_MINUTES, _HOUR = RESOLUTIONS
_PERIODS: Final = ((3_600, _TEN_MINUTES), (86_400, _HOUR))
"""The latest hour, or the day, where few runs ended in it."""
_USERS, _JOBS_OF_USER = 100, 1_000


class RecentServices:
    """Reads a few rows of the statistics, and of the queue as much as has a limit."""

    def __init__(self, jobs: Jobs, records: StatisticsRecords, clock: Clock) -> None:
        self._jobs, self._records, self._clock = jobs, records, clock
        self._known: dict[str, tuple[float, Recent]] = {}

    async def of(self, service: str) -> Recent:
        """What is known of a service; a minute old at most."""
        now = self._clock.monotonic()
        until, recent = self._known.get(service, (now, Recent()))
        if until <= now:
            recent = await self._read(service)
            self._known[service] = now + _GOOD_FOR_S, recent
        return recent

    async def _read(self, service: str) -> Recent:
        for seconds, resolution in _PERIODS:
            run_time_s = await self._run_time_s(service, seconds, resolution)
            if run_time_s is not None:
                waiting = await self._jobs.waiting_users(service, _USERS + 1, _JOBS_OF_USER)
                return Recent(run_time_s, waiting if len(waiting) <= _USERS else None)
        return Recent()

    async def _run_time_s(self, service: str, seconds: int, resolution: Resolution) -> float | None:
        now = self._clock.now()
        since = resolution.start(now - seconds * SECOND)
        total: Tree = {}
        for bucket in await self._records.buckets(resolution, since, now + 1, service):
            add(total, bucket.numbers)
        runs = total.get("run", {})
        count: int = runs.get("count", 0)
        return None if count < LEAST_RUNS else runs["sum_us"] / SECOND / count
