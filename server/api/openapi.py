"""``/openapi.json`` from the route table and the wire models, and a page that shows it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from importlib import resources
from typing import Final

from aiohttp import web

from server.api.openapi_document import describe
from server.domain.access import Area
from server.http.context import Context
from server.http.problems import Refusal
from server.http.route import Route
from shared.http.file_response import send_bytes

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Ferryman API</title>
<link rel="stylesheet" href="swagger/swagger-ui.css"></head>
<body><div id="swagger"></div>
<noscript>The same as text: <a href="openapi.json">/openapi.json</a></noscript>
<script src="swagger/swagger-ui-bundle.js"></script>
<script src="swagger/start.js"></script></body></html>
"""
_ASSETS: Final = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "start.js": "text/javascript",
    "LICENSE": "text/plain",
}


class Description:
    """The document of these routes, made when it is first asked for.

    That takes as long as everything else at the start of a server.
    """

    def __init__(self, routes: Sequence[Route], version: str) -> None:
        self._describe = functools.partial(describe, routes, version)
        self._making = functools.cache(self._make)

    async def text(self, *, tokens: bool) -> bytes:
        # Shielded, because a caller that goes away must not cancel it for the others.
        return await asyncio.shield(self._making(tokens=tokens))

    def _make(self, *, tokens: bool) -> asyncio.Future[bytes]:
        """In a thread of its own: uploads need those that there are."""
        thread = ThreadPoolExecutor(1, "openapi")
        work = functools.partial(self._describe, tokens=tokens)
        making = asyncio.get_running_loop().run_in_executor(thread, work)
        thread.shutdown(wait=False)
        return making


DESCRIPTION: Final = web.AppKey("description", Description)


async def document(request: web.Request, context: Context) -> web.StreamResponse:
    """This description."""
    body = await request.app[DESCRIPTION].text(tokens=context.access.known.needed)
    return await send_bytes(request, body, {"Content-Type": "application/json"})


async def page(_: web.Request, __: Context) -> web.StreamResponse:
    """This description, for people."""
    return web.Response(
        text=_PAGE,
        content_type="text/html",
        headers={
            "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data:; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
        },
    )


async def asset(request: web.Request, _: Context) -> web.StreamResponse:
    """Files of the page."""
    name = request.match_info["file"]
    if name not in _ASSETS:
        raise Refusal(HTTPStatus.NOT_FOUND, "not_found", "no such file")
    headers = {
        "Content-Type": _ASSETS[name],
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "max-age=86400",
    }
    return await send_bytes(request, _asset(name), headers)


@functools.cache
def _asset(name: str) -> bytes:
    return resources.files("server.api").joinpath("swagger", name).read_bytes()


_JSON: Final = "application/json"
_FILES: Final = (*_ASSETS.values(),)

ROUTES: Final = (
    Route("GET", "/openapi.json", Area.OPEN, document, {200: _JSON}),
    Route("GET", "/swagger", Area.OPEN, page, {200: "text/html"}),
    Route("GET", "/swagger/{file}", Area.OPEN, asset, {200: _FILES}),
)
