"""Every route, in one table: what the application serves, and what ``/openapi.json`` says."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api import (
    agents,
    audit,
    bulk,
    downloads,
    events,
    files,
    jobs,
    logs,
    openapi,
    permits,
    schedules,
    server_status,
    services,
    tokens,
    upload,
    webhooks,
)
from server.domain.access import Area, acting_as, check_area
from server.domain.errors import BadField
from server.domain.upload_fields import USER_ID
from server.http.context import Context
from server.http.permits import BY_PERMIT, check_permit
from server.http.route import Route, conditional, json_answer
from shared.http.authentication import PRINCIPAL
from shared.wire import JobPage

ROUTES: Final = (
    *server_status.ROUTES,
    *upload.ROUTES,
    *downloads.ROUTES,
    *jobs.ROUTES,
    *permits.ROUTES,
    *bulk.ROUTES,
    *events.ROUTES,
    *logs.ROUTES,
    *files.ROUTES,
    *services.ROUTES,
    *schedules.ROUTES,
    *webhooks.ROUTES,
    *agents.ROUTES,
    *tokens.ROUTES,
    *audit.ROUTES,
    *openapi.ROUTES,
)

ACT_AS: Final = "Ferryman-Act-As"
"""Header of a portal's request for one of its users."""
OPEN_PATHS: Final = frozenset(route.path for route in ROUTES if route.area is Area.OPEN)
"""Answered without a token, too: what can be called is no secret, and a page cannot send one."""


def add_routes(application: web.Application, context: Context) -> None:
    """Serve the table."""
    application[openapi.DESCRIPTION] = openapi.Description(ROUTES, context.version)
    for route in ROUTES:
        methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        for method in methods:
            application.router.add_route(method, _pattern(route.path), _serve(route, context))


def _pattern(path: str) -> str:
    """As the router matches it: the path of a file has folders, and a word that is a route of its
    own is no number of a job, or the methods of both would be taken for those of one."""
    path = path.replace("{path}", "{path:(?s:.+)}")
    return path.replace("/jobs/{id}", "/jobs/{id:(?!bulk(?:/|$))[^/]+}")


def _serve(route: Route, context: Context) -> Handler:
    """The route's handler, for callers whose role may use it."""

    async def handler(request: web.Request) -> web.StreamResponse:
        principal = request[PRINCIPAL]
        if principal.role in BY_PERMIT:
            check_permit(request, by_link=route.by_link, by_ticket=route.by_ticket)
        else:
            check_area(principal, route.area, route.scope)
        route.check_query(request)
        user = request.headers.get(ACT_AS)
        if user is not None:
            if not USER_ID.fullmatch(user):
                raise BadField(ACT_AS, "invalid_user_id", f"Invalid {ACT_AS}: no user is called so")
            request[PRINCIPAL] = acting_as(principal, user)
        # The jobs of a long list take several times as much memory as what is sent of them.
        long = route.answers.get(200) is JobPage and len(request.query.get("limit", "")) > 2
        async with context.pools.reads.lists.turn() if long else nullcontext():
            answer = await route.handler(request, context)
            if not isinstance(answer, web.StreamResponse):
                answer = json_answer(answer)
        return answer if route.area is Area.OPEN else conditional(request, answer)

    return handler
