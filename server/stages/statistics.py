"""Each minute: count what has happened, and look how things are. The numbers of charts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from server.domain.errors import NoSuchService
from server.domain.statistics import (
    ALL,
    MINUTE,
    OTHERS,
    PERIODS,
    Tree,
    add,
    quantile,
)
from server.ports.statistics import Bucket, StatisticsRecords
from server.stages.growth import Forecast
from server.stages.recent import RecentServices
from server.stages.stage import Resources, Stage
from shared.clock import SECOND, Micros, utc
from shared.wire import StatisticsDoc, StatisticsPeriod

_COUNTS: Final = ("uploaded", "uploaded_bytes", "started", "completed", "cancelled", "result_bytes")
_REASONS: Final = ("failed", "retried")
_TIMES: Final = ("waiting", "run")
_OF_JOBS: Final = ("queued", "under_way", "running")
_OF_SERVER: Final = ("agents_up", "slots", "disk_free_bytes", "database_bytes")


class Statistics(Stage):
    """Args:
    free_bytes: of the disk that bundles and results are stored on.
    growth: looks with it.
    """

    def __init__(
        self,
        resources: Resources,
        records: StatisticsRecords,
        free_bytes: Callable[[], int],
        growth: Forecast,
    ) -> None:
        super().__init__(resources)
        self._records, self._free_bytes = records, free_bytes
        self.growth = growth
        self.recent = RecentServices(resources.jobs, records, resources.clock)

    async def run_once(self) -> int:
        """Returns: how many events were looked at."""
        counted = await self._records.count()
        await self._records.sample(self._clock.now(), await self._gauges())
        await self.growth.run_if_due()
        return counted

    def until_next_s(self) -> float:
        """Until a new minute begins."""
        return MINUTE.seconds - self._clock.now() % (MINUTE.seconds * SECOND) / SECOND

    async def _gauges(self) -> dict[str, dict[str, int]]:
        found: dict[str, Counter[str]] = {ALL: Counter()}
        for service, jobs in (await self._records.queued()).items():
            for name in (ALL, service):
                found.setdefault(name, Counter())["queued"] += jobs
        for one in await self._jobs.held():
            for name in (ALL, one.service):
                values = found.setdefault(name, Counter())
                values["under_way"] += one.slots
                values["running"] += one.running
        up = [agent for agent in self._fleet.all() if agent.accepts_work]
        server = {
            "agents_up": len(up),
            "slots": sum(agent.slots or 0 for agent in up),
            "disk_free_bytes": await asyncio.to_thread(self._free_bytes),
            "database_bytes": await self._records.database_bytes(),
        }
        return {name: dict(values) for name, values in found.items()} | {
            ALL: dict(found[ALL]) | server
        }

    async def queued(self) -> Mapping[str, int]:
        """Service -> jobs that wait now."""
        return dict.fromkeys(self._services, 0) | dict(await self._records.queued())

    async def read(self, period: StatisticsPeriod, service: str | None) -> StatisticsDoc:
        """What happened when.

        Raises:
            NoSuchService: neither is there one now, nor was there in the period.
        """
        resolution = PERIODS[period].resolution
        now = self._clock.now()
        until = await self._records.counted_until()
        since = resolution.start(now - PERIODS[period].seconds * SECOND)
        seen = await self._records.services(resolution, since)
        there = {one.name for one in self._services.values() if not one.retired}
        services = sorted((there | set(seen)) - {OTHERS}) + [OTHERS] * (OTHERS in seen)
        if service is not None and service not in services:
            raise NoSuchService(service)
        # A minute is shown when it is over; of ten minutes or an hour there is something before.
        end = MINUTE.start(until or now) if resolution is MINUTE else now + 1
        buckets = await self._records.buckets(resolution, since, end, service or ALL)
        ever = (await self._records.totals()).get(service or ALL, {})
        total: Tree = {}
        for bucket in buckets:
            add(total, bucket.numbers)
        return StatisticsDoc.model_validate(
            {
                "period": period,
                "service": service,
                "services": services,
                "resolution_s": resolution.seconds,
                "since": utc(since),
                "until": utc(now),
                "counted_until": None if until is None else utc(until),
                "total": _counts(total),
                "ever": _counts(ever),
                "points": [_point(one, alone=service is not None) for one in buckets],
            }
        )


def _point(bucket: Bucket, *, alone: bool) -> dict[str, Any]:
    """Args:
    alone: it is about one service.
    """
    gauges: Mapping[str, int] = bucket.numbers.get("gauges", {})
    shown = _OF_JOBS if alone else _OF_JOBS + _OF_SERVER
    means = {name: gauges.get(name, 0) / bucket.samples for name in shown if bucket.samples}
    return {"at": utc(bucket.at), **_counts(bucket.numbers), **means}


def _counts(numbers: Tree) -> dict[str, Any]:
    return (
        {name: numbers.get(name, 0) for name in _COUNTS}
        | {name: numbers.get(name, {}) for name in _REASONS}
        | {name: _times(numbers.get(name, {})) for name in _TIMES}
    )


def _times(histogram: Mapping[str, Any]) -> dict[str, Any]:
    count = histogram.get("count", 0)
    if not count:
        return {"count": 0}
    return {
        "count": count,
        "mean_s": _rounded(histogram["sum_us"] / SECOND / count),
        "p50_s": _rounded(quantile(histogram, 0.5)),
        "p95_s": _rounded(quantile(histogram, 0.95)),
    }


def _rounded(seconds: Micros | float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
