"""A reverse proxy that shows a server below a path."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.server_http import ServerClient

PREFIX: Final = "/jobs/of-ours"


@contextlib.asynccontextmanager
async def proxied(caller: ServerClient) -> AsyncIterator[str]:
    """The server's address below PREFIX; a request for anything outside makes the test fail."""
    outside: list[str] = []

    async def forward(request: web.Request) -> web.StreamResponse:
        path = request.raw_path.removeprefix(PREFIX)
        if path == request.raw_path:
            outside.append(path)
            raise web.HTTPNotFound
        headers = {
            name: value
            for name, value in request.headers.items()
            if name not in ("Transfer-Encoding", "Connection")
        }
        async with caller.session.request(
            request.method,
            f"{caller.url}{path}",
            data=await request.read(),
            headers=headers,
            allow_redirects=False,
            skip_auto_headers=["User-Agent"],
        ) as answer:
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name not in ("Content-Length", "Transfer-Encoding", "Connection", "Date")
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    application = web.Application(client_max_size=1 << 24)
    application.router.add_route("*", "/{path:.*}", forward)
    async with TestServer(application) as server:
        yield str(server.make_url(PREFIX))
    assert [path for path in outside if path != "/favicon.ico"] == []
