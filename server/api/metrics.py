"""``GET /metrics``: for Prometheus."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.http.context import Context
from server.http.route import Route
from shared.http.measured import METRICS, answer


async def metrics(request: web.Request, _: Context) -> web.StreamResponse:
    """What Prometheus reads: counts, times and states, each explained by its own HELP."""
    return await answer(request, request.app[METRICS])


ROUTES: Final = (
    Route(
        "GET",
        "/metrics",
        Area.METRICS,
        metrics,
        {200: ("text/plain", "application/openmetrics-text")},
    ),
)
