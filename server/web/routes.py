"""Every page, in one table, and what is checked before each; and the files of the pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web

from server.domain.access import Area, check_area, scope_of
from server.http.permits import BY_PERMIT, check_permit
from server.http.problems import Refusal
from server.web import jobs, live, login, tokens, upload
from server.web.assets import assets
from server.web.job import files as job_files
from server.web.job import log as job_log
from server.web.job import page as job
from server.web.job import preview
from server.web.job.window import INDEXES, LogIndexes
from server.web.operators import agents, charts, services, status, users
from server.web.site import SITE, PageRoute, Site
from shared.http.authentication import PRINCIPAL
from shared.http.request_body import send_continue
from shared.metrics import gzip_accepted

_FOR_EVER: Final = "public, max-age=31536000, immutable"


async def asset(request: web.Request, _: Site) -> web.StreamResponse:
    """One file; its address has its version, so that it never changes."""
    found = assets().get(request.match_info["path"])
    if found is None:
        raise Refusal(HTTPStatus.NOT_FOUND, "not_found", "no such file")
    current = found.version == request.match_info["version"]
    headers = {
        hdrs.CONTENT_TYPE: found.media_type,
        hdrs.CACHE_CONTROL: _FOR_EVER if current else "no-cache",
        hdrs.VARY: hdrs.ACCEPT_ENCODING,
        "X-Content-Type-Options": "nosniff",
        # A picture that is opened by itself is a document of this origin.
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    }
    if gzip_accepted(request.headers.get(hdrs.ACCEPT_ENCODING, "")):
        headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=found.compressed, headers=headers)
    return web.Response(body=found.content, headers=headers)


ROUTES: Final[tuple[PageRoute, ...]] = (
    PageRoute("GET", "/assets/{version}/{path}", Area.OPEN, asset),
    *live.ROUTES,
    *jobs.ROUTES,
    *job.ROUTES,
    *job_log.ROUTES,
    *job_files.ROUTES,
    *preview.ROUTES,
    *login.ROUTES,
    *tokens.ROUTES,
    *agents.ROUTES,
    *services.ROUTES,
    *charts.ROUTES,
    *status.ROUTES,
    *users.ROUTES,
    *upload.ROUTES,
)
_OPEN: Final = tuple(route for route in ROUTES if route.area is Area.OPEN)
OPEN_PATHS: Final = frozenset(route.path for route in _OPEN if route.method == "GET")
"""Answered without a token or a session, too."""
_OPEN_FORM_BYTES: Final = 8 << 10
OPEN_FORMS: Final = frozenset(route.path for route in _OPEN if route.method == "POST")
"""The same, of forms."""


def add_routes(application: web.Application, site: Site) -> None:
    """Serve the table."""
    application[SITE] = site
    application[INDEXES] = LogIndexes()
    for route in ROUTES:
        methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        for method in methods:
            path = route.path.replace("{path}", "{path:(?s:.+)}")  # of a file: it has folders
            application.router.add_route(method, path, _serve(route, site))


def _serve(route: PageRoute, site: Site) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(request: web.Request) -> web.StreamResponse:
        principal = request[PRINCIPAL]
        if principal.role in BY_PERMIT:
            check_permit(request, by_link=route.by_link)
        else:
            check_area(principal, route.area, route.needs or scope_of(route.area, route.method))
        unsafe = route.method not in ("GET", "HEAD")
        if unsafe and not route.files and request.content_type.startswith("multipart/"):
            raise Refusal(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "multipart",
                "a form with files is not taken here: send application/x-www-form-urlencoded",
            )
        if unsafe and route.area is Area.OPEN:
            _check_length(request)
        if unsafe and not route.files:
            await _read_form(request)
        if unsafe and hdrs.AUTHORIZATION not in request.headers:
            await _check_sent_by_page(request, site)
        return await route.handler(request, site)

    return handler


def _check_length(request: web.Request) -> None:
    """Of a form that anybody may send: it is read before its sender is known."""
    length = request.content_length
    if length is None and request.body_exists:
        why = "say how long the form is: Content-Length"
        raise Refusal(HTTPStatus.LENGTH_REQUIRED, "length_required", why)
    if (length or 0) > _OPEN_FORM_BYTES:
        why = f"this form has more than {_OPEN_FORM_BYTES} bytes"
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", why)


async def _read_form(request: web.Request) -> None:
    """So that it is there for whoever asks for its fields."""
    await send_continue(request)
    try:
        await request.post()
    except UnicodeDecodeError:
        raise Refusal(HTTPStatus.BAD_REQUEST, "bad_utf8", "the form is no UTF-8") from None


async def _check_sent_by_page(request: web.Request, site: Site) -> None:
    if not await site.sent_by_page(request):
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            "form_expired",
            "this form was not sent by a page of this server, or its page is too old: "
            "load the page again, and send the form from there",
        )
