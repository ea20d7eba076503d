"""Every route, in one table: what the application serves, and what ``/openapi.json`` says."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api import (
    agents,
    attempts,
    batches,
    bulk,
    downloads,
    events,
    graph,
    jobs,
    logs,
    openapi,
    schedules,
    server_status,
    services,
    upload,
)
from server.api.context import Context
from server.api.route import Route, json_answer
from server.domain.access import Area, check_area
from shared import wire
from shared.http.authentication import PRINCIPAL

_ZIP: Final = "application/zip"
_ZIP_OR_PART: Final = {200: _ZIP, 206: _ZIP}
_STATUS: Final = {200: wire.StatusBody, 202: wire.StatusBody}
_JOB: Final = "/api/v1/jobs/{id}"
_BATCH: Final = "/api/v1/batches/{id}"
_ATTEMPT: Final = f"{_JOB}/attempts/{{attempt}}"
_SCHEDULE: Final = "/api/v1/schedules/{schedule}"
_AGENT: Final = "/api/v1/agents/{name}"
_SERVICES: Final = "/api/v1/services"
_SERVICE: Final = f"{_SERVICES}/{{name}}"
_ALL_SERVICES: Final = {"all": "1: also those that were retired"}
_SERVICE_MESSAGE: Final = {"message": "why; shown with the service and its jobs, one line"}
_AGENT_MESSAGE: Final = {"message": "why; shown with the agent, one line"}
_WAIT: Final = {"wait": "seconds to hold the request until the job has ended; at most 120"}
_SEEN: Final = {"seen": "return as soon as the state is another than this"}
_EVENTS: Final = {
    "after": "only events with a higher seq",
    "limit": "1 to 1000, default 500",
    "wait": "seconds to wait for one",
}
_LOGS: Final = {
    "stream": "stdout or stderr; default stdout",
    "attempt": "its number; default the latest",
    "offset": "from this byte on",
    "tail": "in place of offset: the last so many bytes",
    "follow": "1: go on with what it writes, until it has ended or wrote nothing for 15 s",
}
_ALL_EVENTS: Final = {
    "after": "only events with a higher seq; now: those that are still to come",
    "user": "only of this user's jobs",
    "service": "only of this service's jobs",
}
_ALL_AGENTS: Final = {"all": "1: also those that were retired and are not in the settings"}
_UPLOAD: Final = {
    "service": "so that it can be refused before the body is read",
    "user_id": "likewise",
}
_PAGES: Final = {"limit": "1 to 1000, default 500", "cursor": "next of the page before"}
_LIST: Final = {
    "user": "only this user's",
    "service": "only this service's",
    "state": "only in this state",
    "tag": "only with this tag",
    "name": "only with this name",
    "reason": "only failed for this reason",
    "dead_letter": "true: only dead letters",
    "since": "only uploaded then or later: a time, or 2h for two hours ago",
    "until": "only uploaded before",
    "parent": "only children of this job",
    "schedule": "only made by this schedule",
    "limit": "1 to 500, default 50",
    "cursor": "next of the page before",
    "idempotency_key": "with user, and nothing else: the job that was uploaded under it",
}
_DEAD_LETTERS: Final = {
    name: _LIST[name]
    for name in ("user", "service", "reason", "tag", "since", "until", "limit", "cursor")
}

_CHILDREN: Final = {name: _LIST[name] for name in ("state", "limit", "cursor")}
_PARENTS: Final = {name: _LIST[name] for name in ("user", "service", *_CHILDREN)}

ROUTES: Final = (
    # job-orchestrator's
    Route("GET", "/", Area.OPEN, server_status.ping, {200: None}),
    Route("GET", "/health", Area.OPEN, server_status.health, {200: None, 503: None}),
    Route(
        "POST",
        "/upload",
        Area.JOBS,
        upload.upload,
        {201: wire.StatusBody, 303: None},
        (400, 413, 415, 422, 429, 503, 507),
        _UPLOAD,
    ),
    Route("GET", "/download/{id}", Area.JOBS, downloads.download, _ZIP_OR_PART, (404,), _WAIT),
    Route("GET", "/download_partial/{id}", Area.JOBS, downloads.partial, {200: _ZIP}, (404, 410)),
    Route("POST", "/terminate/{id}", Area.JOBS, jobs.terminate, _STATUS, (404, 409)),
    Route("GET", "/openapi.json", Area.OPEN, openapi.document, {200: None}),
    Route("GET", "/swagger", Area.OPEN, openapi.page, {200: "text/html"}),
    Route("GET", "/swagger/{file}", Area.OPEN, openapi.asset, {200: None}, (404,)),
    # ours
    Route("GET", "/api/v1/jobs", Area.JOBS, jobs.page, {200: wire.JobPage}, (400,), _LIST),
    Route(
        "POST",
        "/api/v1/jobs/bulk",
        Area.JOBS,
        bulk.bulk,
        {200: wire.BulkAnswer},
        (400, 413),
    ),
    Route("GET", "/api/v1/tags/{tag}", Area.JOBS, jobs.tagged, {200: wire.TagPage}, (400,), _PAGES),
    Route("GET", _JOB, Area.JOBS, jobs.read, {200: wire.JobDoc}, (404,), _WAIT | _SEEN),
    Route("DELETE", _JOB, Area.JOBS, jobs.delete, {204: None, 202: wire.JobDoc}, (404, 409)),
    Route(
        "GET",
        f"{_JOB}/events",
        Area.JOBS,
        events.of_job,
        {200: wire.EventPage, 204: None},
        (400, 404, 429),
        _EVENTS,
    ),
    Route(
        "GET",
        f"{_JOB}/logs",
        Area.JOBS,
        logs.read,
        {200: "text/plain", 206: "text/plain"},
        (400, 404, 409, 410, 416, 429, 503),
        _LOGS,
    ),
    Route(
        "GET",
        "/api/v1/events",
        Area.JOBS,
        events.of_all,
        {200: wire.EventPage},
        (400, 429),
        _EVENTS | _ALL_EVENTS,
    ),
    Route(
        "GET",
        f"{_JOB}/result",
        Area.JOBS,
        downloads.result,
        _ZIP_OR_PART | {202: wire.JobDoc},
        (404, 409, 410),
        _WAIT,
    ),
    Route("GET", "/api/v1/batches", Area.JOBS, batches.page, {200: wire.JobPage}, (400,), _PARENTS),
    Route("GET", _BATCH, Area.JOBS, batches.read, {200: wire.JobDoc}, (404,)),
    Route(
        "GET",
        f"{_BATCH}/children",
        Area.JOBS,
        batches.children,
        {200: wire.JobPage},
        (400, 404),
        _CHILDREN,
    ),
    Route("GET", f"{_BATCH}/result", Area.JOBS, batches.result, {200: _ZIP}, (404, 410)),
    Route(
        "GET",
        f"{_JOB}/graph",
        Area.JOBS,
        graph.read,
        {200: wire.GraphDoc},
        (400, 404),
        {"format": "json, or mermaid for a diagram as text"},
    ),
    Route("GET", f"{_JOB}/attempts", Area.JOBS, attempts.page, {200: wire.AttemptPage}, (404,)),
    Route("GET", _ATTEMPT, Area.JOBS, attempts.read, {200: wire.AttemptDoc}, (404,)),
    Route("GET", f"{_ATTEMPT}/result", Area.JOBS, attempts.result, _ZIP_OR_PART, (404, 409, 410)),
    Route(
        "GET",
        f"{_ATTEMPT}/logs/{{stream}}",
        Area.JOBS,
        attempts.log,
        {200: "text/plain"},
        (404, 409, 410),
    ),
    Route(
        "POST",
        f"{_JOB}/cancel",
        Area.JOBS,
        jobs.cancel,
        {200: wire.JobDoc, 202: wire.JobDoc},
        (404,),
    ),
    Route("POST", f"{_JOB}/retry", Area.JOBS, jobs.retry, {200: wire.JobDoc}, (404, 409, 429)),
    Route(
        "GET",
        "/api/v1/dead-letters",
        Area.JOBS,
        jobs.dead_letters,
        {200: wire.JobPage},
        (400,),
        _DEAD_LETTERS,
    ),
    Route(
        "GET",
        _SERVICES,
        Area.STATUS,
        services.listing,
        {200: wire.ServicePage},
        query=_ALL_SERVICES,
    ),
    Route("GET", _SERVICE, Area.STATUS, services.read, {200: wire.ServiceDoc}, (404,)),
    Route(
        "PUT",
        _SERVICE,
        Area.SERVICES,
        services.put,
        {200: wire.ServiceDoc, 201: wire.ServiceDoc},
        (400, 409, 413),
    ),
    Route("DELETE", _SERVICE, Area.SERVICES, services.retire, {200: wire.ServiceDoc}, (404, 409)),
    Route(
        "POST",
        f"{_SERVICE}/pause",
        Area.SERVICES,
        services.pause,
        {200: wire.ServiceDoc},
        (400, 404),
        _SERVICE_MESSAGE,
    ),
    Route(
        "POST", f"{_SERVICE}/resume", Area.SERVICES, services.resume, {200: wire.ServiceDoc}, (404,)
    ),
    Route(
        "POST",
        "/api/v1/schedules",
        Area.JOBS,
        schedules.create,
        {201: wire.ScheduleDoc},
        (400, 409, 413, 415, 429, 503, 507),
    ),
    Route(
        "GET",
        "/api/v1/schedules",
        Area.JOBS,
        schedules.page,
        {200: wire.SchedulePage},
        (400,),
        {"user": "only this user's", **_PAGES},
    ),
    Route("GET", _SCHEDULE, Area.JOBS, schedules.read, {200: wire.ScheduleDoc}, (404,)),
    Route("DELETE", _SCHEDULE, Area.JOBS, schedules.delete, {204: None}, (404,)),
    Route(
        "POST", f"{_SCHEDULE}/pause", Area.JOBS, schedules.pause, {200: wire.ScheduleDoc}, (404,)
    ),
    Route(
        "POST", f"{_SCHEDULE}/resume", Area.JOBS, schedules.resume, {200: wire.ScheduleDoc}, (404,)
    ),
    Route(
        "POST",
        f"{_SCHEDULE}/run",
        Area.JOBS,
        schedules.run,
        {201: wire.JobDoc, 202: wire.ScheduleDoc},
        (404, 409),
    ),
    Route(
        "GET",
        "/api/v1/agents",
        Area.AGENTS,
        agents.listing,
        {200: wire.AgentPage},
        query=_ALL_AGENTS,
    ),
    Route("GET", _AGENT, Area.AGENTS, agents.read, {200: wire.AgentDoc}, (404,)),
    *(
        Route(
            "POST",
            f"{_AGENT}/{handler.__name__}",
            Area.AGENTS,
            handler,
            {200: wire.AgentDoc},
            (400, 404, 409),
            _AGENT_MESSAGE,
        )
        for handler in (agents.drain, agents.resume, agents.retire, agents.lost)
    ),
)

OPEN_PATHS: Final = frozenset(route.path for route in ROUTES if route.area is Area.OPEN)
"""Answered without a token, too: what can be called is no secret, and a page cannot send one."""


def add_routes(application: web.Application, context: Context) -> None:
    """Serve the table."""
    application[openapi.DOCUMENT] = openapi.describe(ROUTES, context.version)
    for route in ROUTES:
        methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        for method in methods:
            application.router.add_route(method, route.path, _serve(route, context))


def _serve(route: Route, context: Context) -> Handler:
    """The route's handler, for callers whose role may use it."""

    async def handler(request: web.Request) -> web.StreamResponse:
        check_area(request[PRINCIPAL], route.area)
        answer = await route.handler(request, context)
        return answer if isinstance(answer, web.StreamResponse) else json_answer(answer)

    return handler
