"""The server itself: whether all is well, its settings, measures and users."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import AwareDatetime, Field, field_validator

from server.api.agents import listed as listed_agents
from server.api.agents import of_clock, of_version
from server.domain.access import Area, may_use, user_asked_for
from server.domain.allowances import DAY, end_of_day
from server.domain.errors import BadField
from server.domain.troubles import DATABASE_TROUBLES, SERVER_TROUBLES, Trouble, TroubleKind
from server.domain.upload_fields import USER_ID
from server.http import reads
from server.http.context import Context
from server.http.params import JsonBody, read_body, word
from server.http.problems import wants_page
from server.http.route import Body, Route, json_answer
from server.store import changes, queue, statistics, users
from shared import wire
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.http.measured import METRICS, answer
from shared.http.request_log import TARGET
from shared.principals import Role
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import AgentDoc, AgentState, ForgottenDoc, Reloaded, UsageDoc, Wire

_DAYS: Final = 31


async def usage_of(context: Context, user: str, *, for_operators: bool = False) -> UsageDoc:
    """What the user has used, and what is left.

    Args:
        for_operators: with what is none of the user's business.
    """
    now, allowed = context.core.clock.now(), context.core.settings.allowances.of(user)
    counted = await changes.totals_of(context.core.database)
    unmade = await context.core.database.read(queue.unmade, user)
    services: list[dict[str, Any]] = []
    for service in context.core.services.values():
        waiting = counted.queued[service.name, user] + unmade[service.name]
        under_way = counted.users.get(service.name, Counter())[user]
        if service.retired and not (waiting or under_way):
            continue
        services.append(
            {
                "service": service.name,
                "under_way": _quota(under_way, service.runs_of(user)),
                "waiting": _quota(waiting, service.queued_of(user)),
            }
        )
    today = None
    if allowed.uploaded:
        uploaded = (await context.core.database.read(users.uploaded, now, user))[user]
        today = _quota(uploaded, allowed.uploaded)
        today["renewed_at"] = utc(end_of_day(now))
    found: dict[str, Any] = {
        "user_id": user,
        "stored": _quota(
            (await context.core.database.read(users.stored, user))[user], allowed.stored
        ),
        "uploaded_today": today,
        "uploads": _quota(context.pools.uploads.of_user(user), allowed.uploads),
        "rate_limit": str(allowed.rate) if allowed.rate.number else None,
        "services": services,
        "days": await context.core.database.read_list(
            statistics.daily_usage, user, now - (_DAYS - 1) * DAY
        ),
    }
    if for_operators:
        found["group"] = allowed.group or None
    return UsageDoc.model_validate(found)


def _quota(used: int, limit: int) -> dict[str, Any]:
    """Of which 0 is no limit."""
    return {"used": used} | ({"limit": limit, "left": max(0, limit - used)} if limit else {})


ADVICE: Final[Mapping[TroubleKind, str]] = {
    TroubleKind.LOOP_STUCK: "look into the server's log for sweep.failed; restart the server if "
    "nothing there helps: no job is lost by that",
    TroubleKind.DATABASE_DAMAGED: "stop the server, and restore the latest backup (ferryman "
    "restore); keep a copy of the damaged file",
    TroubleKind.DATABASE_FULL: "make room on the disk of the database; the server goes on by "
    "itself as soon as there is some",
    TroubleKind.DATABASE_UNUSABLE: "look at the disk and the permissions of the database file; the "
    "server tries again by itself",
    TroubleKind.DISK_FULL: "make room on the disk of the data folder, delete jobs that nobody "
    "needs, or let their files expire sooner (expires_after)",
    TroubleKind.RESULTS_WAITING: "make room on the disk of the data folder: they are stored as "
    "soon as it is enough for them. Until then no jobs are sent and no uploads are taken, and the "
    "agents keep the results",
    TroubleKind.DATA_FOLDER_UNWRITABLE: "look at what it says: the permissions of the data "
    "folder, a disk that was mounted for reading only or has no inodes left (df -i), or the limit "
    "of open files (LimitNOFILE)",
    TroubleKind.DATA_FOLDER_SILENT: "look at the disk or network share of the data folder: it does "
    "not answer",
    TroubleKind.FILES_UNKNOWN: "look whether the database is the right one; if it is, the server "
    "deletes them some at a time, and ferryman admin verify --repair, with the server stopped, all "
    "at once",
    TroubleKind.FILES_MOVED_ASIDE: "the database did not know them when the server started: look "
    "whether somebody misses them, then remove the folder",
    TroubleKind.NO_AGENTS: "start an agent on a compute host, name it in the server's settings, "
    "and let it read them again (ferryman config reload)",
    TroubleKind.AGENT_AWAY: "look whether the agent runs on its host and can be reached from here; "
    "its jobs are followed again when it is back. If it will not come back, declare it lost; if a "
    "copy of this server's data folder runs, stop the copy and start this server again",
    TroubleKind.AGENT_UNFIT: "look at what the agent says, and run ferryman agent check on its "
    "host; its results are fetched all the same",
    TroubleKind.AGENT_CLOCK: "set the clock that is wrong (timedatectl status); no job is lost by "
    "it, and its scripts see the wrong time",
    TroubleKind.AGENT_VERSION: "bring agent and server to the same version, in any order: jobs "
    "go on meanwhile",
    TroubleKind.AGENT_LOST: "start it again, or retire it if it is gone for good; its jobs are "
    "tried again elsewhere",
    TroubleKind.AGENT_DRAINING: "resume it when its host may be used again, or retire it when it "
    "has no jobs left",
    TroubleKind.SERVICE_NOT_OFFERED: "start an agent that offers it, or look at the services that "
    "the agents offer: until then its jobs wait",
    TroubleKind.SERVICE_PAUSED: "resume it when its jobs may be sent again",
    TroubleKind.SERVICE_GONE: "put it back into the settings, move its jobs to another service "
    "(ferryman services move) or cancel them; else those that wait fail after agent_lost_after",
}
"""What to do about each kind of trouble."""


class TroubleDoc(Wire):
    """Something that is wrong."""

    kind: TroubleKind
    """What is wrong, for programs."""
    message: str
    """A sentence for people."""
    advice: str
    """What to do about it."""
    about: str = ""
    """Name of the agent, service or loop that it is about."""
    is_serious: bool
    """Whether it keeps the server from taking new work."""


class DiskDoc(Wire):
    """The disk with the server's data folder. Sizes in bytes."""

    free: int
    """What is free."""
    total: int
    """How large it is."""
    min_free: int
    """What uploads must leave."""


class LoopDoc(Wire):
    """Something that the server does again and again."""

    name: str
    """What it is called in the log."""
    last_ok_s: float
    """Seconds since it was done last."""
    stuck: bool
    """Whether that is far longer ago than it should be."""


class StatusDoc(Wire):
    """``GET /api/v1/status``: whether all is well, and how the server's parts are."""

    status: Literal["ok", "attention", "error"]
    """attention: new work is welcome, and something should be looked at; error: it is not."""
    version: str
    """Of the server."""
    started_at: AwareDatetime
    """Since when it runs."""
    troubles: list[TroubleDoc] = Field(default_factory=list)
    """Those that keep it from new work come first."""
    disk: DiskDoc | None = None
    """null: it does not answer."""
    database_bytes: int | None = None
    """What the database takes on disk; null: it cannot be read."""
    database_free_bytes: int | None = None
    """Of these, what is not in use; null: it cannot be read."""
    day_jobs: int | None = None
    """Jobs that were uploaded in the last day; null: they cannot be counted now."""
    day_bytes: int | None = None
    """Bytes of the bundles and results that were stored in it; null: likewise."""
    queued: int | None = None
    """Jobs that wait; null: they cannot be counted now."""
    in_work: int | None = None
    """Slots that jobs hold; null: they cannot be counted now."""
    slots: int = 0
    """Of the agents that take jobs."""
    agents_up: int = 0
    """Agents that take jobs."""
    agents: int = 0
    """Agents that are not retired."""
    uploads: int = 0
    """Under way now."""
    most_uploads: int
    """How many may be."""
    loops: list[LoopDoc] = Field(default_factory=list)
    """What it does again and again."""


async def status_of(context: Context) -> StatusDoc:
    """How the server is now. It is made without the database, too."""
    disk, (size, unused) = await context.health.disk(), await context.health.database_bytes()
    found = [*await context.health.troubles(), *context.health.files_to_look_at()]
    queued = in_work = day_jobs = day_bytes = None
    agents: Sequence[AgentDoc] = ()
    with contextlib.suppress(DatabaseUnavailable):  # one of the troubles says so
        agents = await listed_agents(context, every=False)
        counted = await changes.totals_of(context.core.database)
        queued = sum(counted.services.values())
        day_jobs, day_bytes = await context.stages.statistics.last_day()
        in_work = sum(counted.agents.values())
        found = [*found, *_of_agents(agents, context.version)]
        for left in await context.stages.services.gone():
            found.append(Trouble(TroubleKind.SERVICE_GONE, str(left), left.service))
    found += [
        Trouble(
            TroubleKind.AGENT_UNFIT,
            f"agent {name} gets no new jobs: what a job left there does not fit on the disk",
            name,
        )
        for name in sorted(context.stages.get.results.held())
    ]
    found = sorted(
        [*found, *_of_services(context)], key=lambda one: one.kind not in SERVER_TROUBLES
    )
    is_serious = any(one.kind in SERVER_TROUBLES for one in found)
    return StatusDoc(
        status="error" if is_serious else "attention" if found else "ok",
        version=context.version,
        started_at=utc(context.health.started_at),
        troubles=[_document(one) for one in found],
        disk=None if disk is None else DiskDoc(**asdict(disk)),
        database_bytes=size,
        database_free_bytes=unused,
        day_jobs=day_jobs,
        day_bytes=day_bytes,
        queued=queued,
        in_work=in_work,
        slots=sum(one.slots or 0 for one in agents if one.up),
        agents_up=sum(one.up for one in agents),
        agents=sum(one.state is not AgentState.RETIRED for one in agents),
        uploads=context.pools.uploads.under_way,
        most_uploads=reads.AT_ONCE,
        loops=[
            LoopDoc(name=one.name, last_ok_s=round(one.last_ok_s, 1), stuck=not one.healthy)
            for one in context.supervisor.loops
        ],
    )


def _document(trouble: Trouble) -> TroubleDoc:
    return TroubleDoc(
        kind=trouble.kind,
        message=trouble.text,
        advice=ADVICE[trouble.kind],
        about=trouble.about,
        is_serious=trouble.kind in SERVER_TROUBLES,
    )


def _of_agents(agents: Sequence[AgentDoc], version: str) -> list[Trouble]:
    in_use = [one for one in agents if one.state is not AgentState.RETIRED]
    if not in_use:
        return [Trouble(TroubleKind.NO_AGENTS, "there is no agent, so no job can run")]
    found = []
    for one in in_use:
        for kind, text in (
            (TroubleKind.AGENT_CLOCK, of_clock(one)),
            (TroubleKind.AGENT_VERSION, of_version(one, version)),
        ):
            if text:
                found.append(Trouble(kind, f"agent {one.name}: {text}", one.name))
        kind, text = TroubleKind.AGENT_UNFIT, one.trouble
        if one.up:
            continue
        if one.state is AgentState.LOST:
            kind, text = TroubleKind.AGENT_LOST, f"agent {one.name} is lost: {one.message}"
        elif not one.reachable:
            kind = TroubleKind.AGENT_AWAY
        elif one.state is AgentState.DRAINING:
            kind, text = TroubleKind.AGENT_DRAINING, f"{one.trouble}: {one.message}"
        found.append(Trouble(kind, text, one.name))
    return found


def _of_services(context: Context) -> list[Trouble]:
    found = []
    for one in context.core.services.values():
        if one.retired:
            continue
        if one.paused:
            text = f"service {one.name} is paused: {one.paused_message}"
            found.append(Trouble(TroubleKind.SERVICE_PAUSED, text, one.name))
        elif not context.core.registry.offered(one.name):
            text = f"no agent offers the service {one.name}"
            found.append(Trouble(TroubleKind.SERVICE_NOT_OFFERED, text, one.name))
    return found


async def metrics(request: web.Request, _: Context) -> web.StreamResponse:
    """What Prometheus reads: counts, times and states, each explained by its own HELP."""
    return await answer(request, request.app[METRICS])


async def reload(_: web.Request, context: Context) -> Reloaded:
    """Read the settings again, and apply what can be applied while the server runs."""
    return await context.reload()


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
    request[TARGET] = context.stages.forget_user.instead(body.user)
    if body.dry_run:
        found = await context.stages.forget_user.look(body.user)
        return ForgottenDoc(found=found, done=not any(found.values()))
    return await context.stages.forget_user(request[PRINCIPAL], body.user)


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
        raise web.HTTPSeeOther(f"{context.core.settings.server.url_prefix}/jobs")
    return json_answer(Pong(message="pong"))


async def health(request: web.Request, context: Context) -> web.StreamResponse:
    """200 when new work is welcome, 503 with the reasons when not."""
    troubles = await context.health.troubles()
    no_database = any(one.kind in DATABASE_TROUBLES for one in troubles)
    body = HealthDoc(
        status="error" if troubles else "ok", database="error" if no_database else "ok"
    )
    if request[PRINCIPAL].authenticated:
        body = body.model_copy(update={"version": context.version})
    if may_use(request[PRINCIPAL], Area.AGENTS):
        agents = context.core.registry.all()
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
    reasons = sorted({one.kind.value for one in await context.health.troubles()})
    if context.core.wakeups.closing:
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
    Route("POST", "/api/v1/settings/reload", Area.SERVICES, reload, {200: Reloaded}),
    Route(
        "GET",
        "/api/v1/usage",
        Area.JOBS,
        usage,
        {200: wire.UsageDoc},
        {"user": word("whose; a user's own is meant where it is left out", 64)},
    ),
    Route(
        "POST", "/api/v1/forget-user", Area.ADMIN, forget_user, {200: ForgottenDoc}, body=_FORGET
    ),
)
