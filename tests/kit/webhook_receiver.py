"""A receiver of webhooks, which answers as a test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.kit.raw_http import listening
from tests.kit.waiting import until


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


@dataclass
class WebhookReceiver:
    """Attributes:
    answers: status (and headers) of the next answers; 204 behind them.
    hold: answers wait until it is set.
    """

    answers: list[int | tuple[int, dict[str, str]]] = field(default_factory=list)
    body: bytes = b""
    received: list[Received] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def arrived(self, count: int) -> list[Received]:
        """All that has come, once there are so many."""
        await until(lambda: len(self.received) >= count, 20)
        return self.received

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.received.append(Received(request.path_qs, dict(request.headers), body))
        await self.hold.wait()
        answer = self.answers.pop(0) if self.answers else 204
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        return web.Response(status=status, headers=headers, body=self.body or None)


@asynccontextmanager
async def receiving(*answers: int | tuple[int, dict[str, str]]) -> AsyncIterator[WebhookReceiver]:
    receiver = WebhookReceiver(list(answers))
    receiver.hold.set()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", receiver.handle)
    async with listening(application, access_log=None, shutdown_timeout=0.1) as receiver.port:
        try:
            yield receiver
        finally:
            receiver.hold.set()
