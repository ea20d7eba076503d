"""The server itself: whether it is there, and whether all is well."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, Literal

from aiohttp import web
from pydantic import Field

from server.domain.access import Area, may_use
from server.domain.troubles import DATABASE_TROUBLES
from server.http.context import Context
from server.http.problems import wants_page
from server.http.route import Route, json_answer
from server.http.status import StatusDoc, status_of
from shared.http.authentication import PRINCIPAL
from shared.wire import Wire

STOPPING: Final = "stopping"


class Pong(Wire):
    """Somebody is there."""

    message: str
    """Always pong."""


class LiveDoc(Wire):
    """The program runs."""

    status: Literal["ok"] = "ok"
    """Always ok: otherwise there is no answer."""


class HealthDoc(Wire):
    """Whether all is well; what is wrong, and the agents, are for operators."""

    status: Literal["ok", "error"]
    """error: new work is not welcome."""
    database: Literal["ok", "error"]
    """Whether the database can be used."""
    version: str | None = None
    """Of the server; for whoever has a token."""
    agents: dict[str, Literal["up", "down"]] | None = None
    """Name -> whether it may get new jobs; for operators."""
    message: str | None = None
    """What is wrong; for operators."""


class ReadyDoc(Wire):
    """Whether uploads are taken now."""

    status: Literal["ok", "error"]
    """error: send them elsewhere, or later."""
    reasons: list[str] = Field(default_factory=list)
    """Why not: kinds of trouble, and ``stopping``."""


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
        body = body.model_copy(update={"version": context.version})
    if may_use(request[PRINCIPAL], Area.AGENTS):
        agents = context.fleet.all()
        body = body.model_copy(
            update={
                "agents": {one.name: "up" if one.accepts_work else "down" for one in agents},
                "message": "; ".join(one.text for one in troubles) or None,
            }
        )
    return _answer(body, is_well=not troubles)


async def livez(_: web.Request, __: Context) -> web.StreamResponse:
    """200 while the process answers at all; looks at neither disk nor database."""
    return _answer(LiveDoc(), is_well=True)


async def readyz(_: web.Request, context: Context) -> web.StreamResponse:
    """200 when uploads are taken, 503 with the reasons when not; waits for neither disk nor
    database."""
    reasons = sorted({one.kind.value for one in await context.troubles()})
    if context.watch.closing:
        reasons.append(STOPPING)
    ready = ReadyDoc(status="error" if reasons else "ok", reasons=reasons)
    return _answer(ready, is_well=not reasons)


def _answer(body: Wire, *, is_well: bool) -> web.Response:
    status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    headers = {"Cache-Control": "no-store"} | ({} if is_well else {"Retry-After": "10"})
    text = body.model_dump_json(exclude_none=True)
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)


async def status(_: web.Request, context: Context) -> StatusDoc:
    """How the server is: its troubles with what to do, disk, queue, agents and loops."""
    return await status_of(context)


ROUTES: Final = (
    Route("GET", "/", Area.OPEN, ping, {200: Pong, 303: None}),
    Route("GET", "/health", Area.OPEN, health, {200: HealthDoc, 503: HealthDoc}),
    Route("GET", "/livez", Area.OPEN, livez, {200: LiveDoc}),
    Route("GET", "/readyz", Area.OPEN, readyz, {200: ReadyDoc, 503: ReadyDoc}),
    Route("GET", "/api/v1/status", Area.AGENTS, status, {200: StatusDoc}),
)
