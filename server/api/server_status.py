"""The server itself: whether all is well, its settings, measures and users."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, Literal

from aiohttp import web
from pydantic import Field, field_validator

from server.domain.access import Area, may_use, user_asked_for
from server.domain.errors import BadField
from server.domain.troubles import DATABASE_TROUBLES
from server.domain.upload_fields import USER_ID
from server.http.context import Context
from server.http.params import JsonBody, read_body, word
from server.http.problems import wants_page
from server.http.route import Body, Route, json_answer
from server.http.status import StatusDoc, status_of
from server.http.usage import usage_of
from server.stages.services import gone
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.http.measured import METRICS, answer
from shared.http.request_log import TARGET
from shared.principals import Role
from shared.wire import ForgottenDoc, JobsLeft, JobState, Reloaded, UsageDoc, WaitingJob, Wire


async def metrics(request: web.Request, _: Context) -> web.StreamResponse:
    """What Prometheus reads: counts, times and states, each explained by its own HELP."""
    return await answer(request, request.app[METRICS])


async def reload(_: web.Request, context: Context) -> Reloaded:
    """Read the settings again, and apply what can be applied while the server runs."""
    done = await context.reload()
    left = [
        JobsLeft(service=name, queued=load.by_state[JobState.QUEUED], in_work=load.in_work)
        for name, load in (await gone(context.services, context.jobs)).items()
    ]
    return done.model_copy(update={"left": left})


async def usage(request: web.Request, context: Context) -> UsageDoc:
    """What a user has used of everything that is limited, and what is left.

    A user's own; operators and portals name the user, a portal one of its own users.
    """
    user = user_asked_for(request[PRINCIPAL], request.query.get("user"))
    if not USER_ID.fullmatch(user):
        raise BadField("user", "invalid_user_id", "Invalid user: no user is called so")
    is_operator = request[PRINCIPAL].role is Role.OPERATOR
    return await usage_of(context, user, for_operators=is_operator)


class ForgetUserBody(JsonBody):
    """What ``POST /api/v1/forget-user`` takes."""

    user: str
    """Whose data is to go."""
    dry_run: bool = False
    """Only count it."""

    @field_validator("user")
    @classmethod
    def _is_user(cls, value: str) -> str:
        if not USER_ID.fullmatch(value):
            raise ValueError("no user is called so")
        return value


async def forget_user(request: web.Request, context: Context) -> ForgottenDoc:
    """Remove all data of a user. Jobs whose agent is away are left: call it again then."""
    body = await read_body(request, ForgetUserBody)
    request[TARGET] = context.forget_user.instead(body.user)
    if body.dry_run:
        found = await context.forget_user.look(body.user)
        return ForgottenDoc(found=found, done=not any(found.values()))
    report = await context.forget_user(request[PRINCIPAL], body.user)
    return ForgottenDoc(
        removed=report.removed,
        waiting=[WaitingJob(id=job, why=why) for job, why in sorted(report.waiting.items())],
        kept=report.kept,
        done=not report.waiting,
    )


_FORGET: Final = Body(
    "application/json",
    {
        "type": "object",
        "required": ["user"],
        "properties": {
            "user": {"type": "string", "pattern": f"^{USER_ID.pattern}$"},
            "dry_run": {"type": "boolean"},
        },
        "additionalProperties": False,
    },
    {"user": "ann"},
    ForgetUserBody,
)


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
    Route(
        "GET",
        "/metrics",
        Area.METRICS,
        metrics,
        {200: ("text/plain", "application/openmetrics-text")},
    ),
    Route(
        "POST",
        "/api/v1/settings/reload",
        Area.SERVICES,
        reload,
        {200: Reloaded},
    ),
    Route(
        "GET",
        "/api/v1/usage",
        Area.JOBS,
        usage,
        {200: wire.UsageDoc},
        {"user": word("whose; a user's own is meant where it is left out", 64)},
    ),
    Route(
        "POST",
        "/api/v1/forget-user",
        Area.ADMIN,
        forget_user,
        {200: ForgottenDoc},
        body=_FORGET,
    ),
)
