"""The server itself: whether it is there, and whether all is well."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.api.context import Context
from server.api.route import Route
from server.domain.access import Area
from shared.http.authentication import PRINCIPAL


async def ping(_: web.Request, __: Context) -> web.StreamResponse:
    """Whether anybody is there."""
    return web.json_response({"message": "pong"})


async def health(request: web.Request, context: Context) -> web.StreamResponse:
    """200 when new work is welcome, 503 with the reasons when not."""
    troubles = await context.troubles()
    database = "error" if any("database" in trouble for trouble in troubles) else "ok"
    body: dict[str, Any] = {"status": "error" if troubles else "ok", "database": database}
    if request[PRINCIPAL].authenticated:
        body["version"] = context.version
        body["agents"] = {
            agent.name: "up" if agent.accepts_work else "down" for agent in context.fleet.all()
        }
        if troubles:
            body["message"] = "; ".join(troubles)
    return web.json_response(
        body, status=HTTPStatus.SERVICE_UNAVAILABLE if troubles else HTTPStatus.OK
    )


ROUTES: Final = (
    Route("GET", "/", Area.OPEN, ping, {200: None}),
    Route("GET", "/health", Area.OPEN, health, {200: None, 503: None}),
)
