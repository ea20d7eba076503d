"""The settings of the server, for operators."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.http.context import Context
from server.http.route import Route
from shared.wire import Reloaded


async def reload(_: web.Request, context: Context) -> Reloaded:
    """Read the settings again, and apply what can be applied while the server runs."""
    return await context.reload()


ROUTES: Final = (
    Route(
        "POST",
        "/api/v1/settings/reload",
        Area.SERVICES,
        reload,
        {200: Reloaded},
        ("settings_not_reloaded",),
    ),
)
