"""The server itself: whether it is there, and whether all is well."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, Literal

from aiohttp import web

from server.domain.access import Area
from server.domain.troubles import DATABASE_TROUBLES
from server.http.context import Context
from server.http.problems import wants_page
from server.http.route import Route, json_answer
from server.http.status import StatusDoc, status_of
from shared.http.authentication import PRINCIPAL
from shared.wire import Wire


class Pong(Wire):
    """Somebody is there."""

    message: str
    """Always pong."""


class HealthDoc(Wire):
    """Whether all is well; what is none of a stranger's business is shown with a token only."""

    status: Literal["ok", "error"]
    """error: new work is not welcome."""
    database: Literal["ok", "error"]
    """Whether the database can be used."""
    version: str | None = None
    """Of the server."""
    agents: dict[str, Literal["up", "down"]] | None = None
    """Name -> whether it may get new jobs."""
    message: str | None = None
    """What is wrong."""


async def ping(request: web.Request, context: Context) -> web.StreamResponse:
    """Whether anybody is there; a browser goes on to the pages."""
    if wants_page(request):
        raise web.HTTPSeeOther(f"{context.url_prefix}/jobs")
    return json_answer(Pong(message="pong"))


async def health(request: web.Request, context: Context) -> web.StreamResponse:
    """200 when new work is welcome, 503 with the reasons when not."""
    troubles = await context.troubles()
    no_database = any(one.kind in DATABASE_TROUBLES for one in troubles)
    body = HealthDoc(
        status="error" if troubles else "ok", database="error" if no_database else "ok"
    )
    if request[PRINCIPAL].authenticated:
        agents = context.fleet.all()
        body = body.model_copy(
            update={
                "version": context.version,
                "agents": {one.name: "up" if one.accepts_work else "down" for one in agents},
                "message": "; ".join(one.text for one in troubles) or None,
            }
        )
    status = HTTPStatus.SERVICE_UNAVAILABLE if troubles else HTTPStatus.OK
    text = body.model_dump_json(exclude_none=True)
    headers = {"Retry-After": "10"} if troubles else {}
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)


async def status(_: web.Request, context: Context) -> StatusDoc:
    """How the server is: its troubles with what to do, disk, queue, agents and loops."""
    return await status_of(context)


ROUTES: Final = (
    Route("GET", "/", Area.OPEN, ping, {200: Pong, 303: None}),
    Route("GET", "/health", Area.OPEN, health, {200: HealthDoc, 503: HealthDoc}),
    Route("GET", "/api/v1/status", Area.AGENTS, status, {200: StatusDoc}),
)
