"""Collects all metrics of a server when somebody asks for them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from server.domain.agents import AgentRecord
from server.http import upload_limits
from server.http.context import Context
from server.metrics import jobs, parts
from server.metrics.jobs import Now
from server.store.statistics import SqlStatistics
from shared.clock import SECOND
from shared.metrics import ProgramMetrics, gauge
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable

_FRESH_S: Final = 2.0
"""For so long what was read from the store is said again."""
_REST: Final = 20
"""For so many times as long as it took to read, if that is longer: a twentieth of one processor's
time, whoever asks how often."""


class ServerMetrics(ProgramMetrics):
    """The metrics of a server; those of the store are left out while it cannot be read.

    Args:
        of: what is asked how it is.
        requests: makes the metrics of the requests of now.
        collectors: what counts by itself, beside the database and the context's measures.
    """

    def __init__(
        self,
        of: Context,
        database: Database,
        requests: Callable[[], list[Metric]],
        collectors: Iterable[Collector],
    ) -> None:
        self._of, self._database, self._requests = of, database, requests
        self._statistics = SqlStatistics(database)
        counting = [*collectors, *database.measured.collectors, *of.measures.collectors]
        super().__init__("server", of.version, counting)
        self._stored: list[Metric] = []
        self._now = Now({}, [], {}, [])
        self._records: list[AgentRecord] | None = None
        self._stored_until, self._reading = -math.inf, asyncio.Lock()

    async def find(self) -> list[Metric]:
        of = self._of
        async with self._reading:  # who asks at the same time gets the same
            if of.clock.monotonic() >= self._stored_until:
                await self._read()
        services = {name: one for name, one in of.services.items() if not one.retired}
        found = [*self._stored, *self._requests(), parts.of_listeners(of.measures)]
        writes = self._database.writes_waiting
        found += jobs.of_now(self._now, of.clock.now(), services) if self._stored else []
        found += parts.of_server(await of.troubles(), await of.vitals())
        found += parts.of_results_waiting(of.results_waiting)
        found += parts.of_agents(of.fleet, self._records, self._now.held)
        found += parts.of_services(services, of.fleet)
        for name, meaning, value in (
            ("ferryman_uploads_in_flight", "Uploads under way.", of.upload_limits.under_way),
            ("ferryman_uploads_limit", "Uploads that there may be.", upload_limits.AT_ONCE),
            ("ferryman_database_writes_waiting", "Changes not begun.", writes),
            ("ferryman_webhooks_sending", "Webhooks that are being sent.", of.webhooks.sending),
            ("ferryman_store_readable", "1: the store could be read.", bool(self._stored)),
        ):
            found.append(gauge(name, meaning, (), {(): value}))
        return found

    async def _read(self) -> None:
        of, began = self._of, self._of.clock.monotonic()
        try:
            await self._statistics.count()
            totals = await self._statistics.totals()
            self._now = Now(
                await self._statistics.queued(),
                await self._statistics.under_way(),
                await self._statistics.waiting_since(),
                await of.jobs.held(),
            )
            pending, oldest = await of.webhooks.pending()
            self._records = await of.agents.all()
        except DatabaseUnavailable:
            self._stored, self._records, self._now = [], None, Now({}, [], {}, [])
        else:
            since = 0.0 if oldest is None else (of.clock.now() - oldest) / SECOND
            self._stored = [
                *jobs.counted(totals, of.services),
                gauge("ferryman_webhooks_pending", "Webhooks to be sent.", (), {(): pending}),
                gauge(
                    "ferryman_webhooks_oldest_seconds",
                    "Since the oldest of them was announced.",
                    (),
                    {(): since},
                ),
            ]
        took = of.clock.monotonic() - began
        self._stored_until = of.clock.monotonic() + max(_FRESH_S, _REST * took)
