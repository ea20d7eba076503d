"""Requests under way, so that a stopping server can let them end.

aiohttp throws away what arrives on a connection once its own shutdown has begun: an upload in
flight could never end. So the listening socket is closed first, then these are awaited, then
aiohttp stops.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from shared.clock import Clock, wait_for
from shared.web import Handler


class Flights:
    """Counts requests between their head and the end of their answer."""

    def __init__(self) -> None:
        self._count = 0
        self._closing = False
        self._landed = asyncio.Event()
        self._landed.set()

    @property
    def middleware(self) -> web.middlewares.Middleware:  # type: ignore[name-defined]
        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._count += 1
            self._landed.clear()
            try:
                response = await handler(request)
                if self._closing and not response.prepared:
                    response.force_close()
                return response
            finally:
                self._count -= 1
                if not self._count:
                    self._landed.set()

        return count

    async def all_landed(self, seconds: float, clock: Clock) -> bool:
        """Wait until none is under way, at most so long; whether that is so."""
        self._closing = True
        return await wait_for(self._landed, seconds, clock)
