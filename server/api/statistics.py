"""What happened when."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.http.context import Context
from server.http.growth import growth_of
from server.http.route import Route
from server.http.statistics import STATISTICS, asked_for
from shared.wire import StatisticsDoc


async def statistics(request: web.Request, context: Context) -> StatisticsDoc:
    """How many jobs waited, ran, completed and failed when, and for how long; for operators."""
    found = await context.statistics.read(*asked_for(request))
    return found.model_copy(update={"growth": growth_of(context, await context.vitals())})


ROUTES: Final = (
    Route(
        "GET",
        "/api/v1/statistics",
        Area.AGENTS,
        statistics,
        {200: StatisticsDoc},
        ("invalid_period", "service_not_found"),
        STATISTICS,
    ),
)
