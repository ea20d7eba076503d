"""Bodies of requests that are read into memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from aiohttp import web

from client_agent.payloads.errors import Refused
from shared.http.request_body import send_continue

MAX_BODY: Final = 4 << 20
MAX_AT_ONCE: Final = 32
"""Bodies that are being read: together they take 128 MiB at most."""
MAX_OF_ONE: Final = 16
"""Of these, from one address: a server that is slow leaves room for the others."""
MAX_S: Final = 60.0
"""For a whole body; one from a server is 1 MB at most."""


class Bodies:
    """All that come in at the same time."""

    def __init__(self) -> None:
        self._reading = Counter[str]()
        """Address -> bodies."""

    async def read(self, request: web.Request) -> bytes:
        """The whole body.

        Raises:
            Refused: 413: it is too long; 408: it takes too long; 503: there are too many.
        """
        too_large = Refused(413, "too_large", f"the body is longer than {MAX_BODY} bytes")
        if (request.content_length or 0) > MAX_BODY:
            raise too_large
        peer, reading = request.remote or "", self._reading
        if reading.total() >= MAX_AT_ONCE or reading[peer] >= MAX_OF_ONE:
            message = f"{reading.total()} such requests are being read: try again"
            raise Refused(503, "too_many_requests", message)
        reading[peer] += 1
        try:
            async with asyncio.timeout(MAX_S):
                await send_continue(request)
                body = bytearray()
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BODY:
                        raise too_large
        except TimeoutError:
            message = f"the body was not there after {MAX_S:g} s"
            raise Refused(408, "body_too_slow", message) from None
        finally:
            reading -= Counter([peer])
        return bytes(body)
