"""The settings of the server, for operators."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.http.context import Context
from server.http.route import Route
from server.stages.services import gone
from shared.wire import JobsLeft, JobState, Reloaded


async def reload(_: web.Request, context: Context) -> Reloaded:
    """Read the settings again, and apply what can be applied while the server runs."""
    done = await context.reload()
    left = [
        JobsLeft(service=name, queued=load.by_state[JobState.QUEUED], in_work=load.in_work)
        for name, load in (await gone(context.services, context.jobs)).items()
    ]
    return done.model_copy(update={"left": left})


ROUTES: Final = (
    Route(
        "POST",
        "/api/v1/settings/reload",
        Area.SERVICES,
        reload,
        {200: Reloaded},
    ),
)
