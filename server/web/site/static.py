"""Styles, scripts and pictures of the pages."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web

from server.domain.access import Area
from server.http.problems import Refusal
from server.web.site.assets import assets
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.encodings import gzip_accepted

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


ROUTES: Final = (PageRoute("GET", "/assets/{version}/{path}", Area.OPEN, asset),)
