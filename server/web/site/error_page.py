"""The page of a request that is refused."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from server.http.problems import BACK, Refusal
from server.http.route import LINK_PARAMETER
from server.web.site.site import SITE, Site

LOGIN: Final = "/login"
_SAY: Final = {
    HTTPStatus.BAD_REQUEST: "This cannot be done as it was asked",
    HTTPStatus.UNAUTHORIZED: "Please log in",
    HTTPStatus.FORBIDDEN: "This is not for you",
    HTTPStatus.NOT_FOUND: "There is nothing here",
    HTTPStatus.METHOD_NOT_ALLOWED: "This cannot be done here",
    HTTPStatus.CONFLICT: "This cannot be done now",
    HTTPStatus.GONE: "This is gone",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "This is too large",
    HTTPStatus.MISDIRECTED_REQUEST: "This server has another name",
    HTTPStatus.UNPROCESSABLE_ENTITY: "This cannot be done as it was asked",
    HTTPStatus.TOO_MANY_REQUESTS: "That was too much at once",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Something went wrong here",
    HTTPStatus.SERVICE_UNAVAILABLE: "This does not work right now",
    HTTPStatus.INSUFFICIENT_STORAGE: "The server's disk is full",
}


def _back_from(request: web.Request, site: Site) -> str:
    """The login, which leads back to the page that the request came from."""
    shown = urlsplit(request.headers.get("HX-Current-URL", "")[:2_000])
    path = shown.path.removeprefix(site.context.url_prefix) or "/"
    return site.url(LOGIN, next=f"{path}?{shown.query}" if shown.query else path)


def error_page(request: web.Request, refusal: Refusal) -> web.Response:
    """The page; whoever is not logged in is sent to the login."""
    site = request.app[SITE]
    status = HTTPStatus(refusal.status)
    by_link = LINK_PARAMETER in request.query
    if status is HTTPStatus.UNAUTHORIZED and not by_link:
        if "HX-Request" in request.headers:  # a part of a page: the whole page has to go there
            return web.Response(status=status, headers={"HX-Redirect": _back_from(request, site)})
        if request.method in ("GET", "HEAD"):
            return site.go_to(LOGIN, next=request.path_qs)
    return site.page(
        request,
        "site/error.html",
        status=status,
        title=_SAY.get(status, status.phrase),
        code=refusal.code,
        status_text=f"{status.value} {status.phrase}",
        message=refusal.message,
        part=refusal.part,
        back=request.get(BACK),
        log_in=status is HTTPStatus.UNAUTHORIZED,
        retry_after_s=refusal.retry_after_s,
    )
