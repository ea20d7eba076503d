"""Server-sent events: an answer that goes on, for as long as there is something to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Final, TypeAlias

from aiohttp import hdrs, web

from server.domain.errors import BadField, FerrymanError
from server.http.context import Context
from server.http.reads import Messages
from shared.clock import wait_for
from shared.http.middleware import GATE
from shared.http.numbers import whole_number
from shared.sqlite.files import DatabaseUnavailable

KEEPALIVE_S: Final = 15.0
"""Proxies cut an answer in which nothing comes for a minute."""
_BETWEEN_S: Final = 0.02
"""Between two reads, where there are more at once."""
_LAST_ID: Final = "Last-Event-ID"
_KIND: Final = "text/event-stream"
COMMENT: Final = b": nothing new\n\n"
NO_BUFFERING: Final = {"X-Accel-Buffering": "no", hdrs.CACHE_CONTROL: "no-cache"}
"""Of every answer that goes on: nginx would keep it until it ends."""


Changes: TypeAlias = AbstractContextManager[asyncio.Event]
"""An event that is set when there may be more."""


def is_wanted(request: web.Request) -> bool:
    """Whether the caller asks for server-sent events."""
    return _KIND in request.headers.get(hdrs.ACCEPT, "").lower()


def last_event_id(request: web.Request) -> int | None:
    """What a browser that connects again has seen. Raises BadField."""
    text = request.headers.get(_LAST_ID)
    if not text:
        return None
    number = whole_number(text, most=2**63 - 1)
    if number is None:
        message = f"{_LAST_ID} should be the id of an event, not {text[:32]!r}"
        raise BadField(_LAST_ID, "invalid_last_event_id", message)
    return number


def message(number: int, event: str, data: str) -> bytes:
    """One event; ``data`` is JSON, which has no line breaks."""
    return f"id: {number}\nevent: {event}\ndata: {data}\n\n".encode()


def response() -> web.StreamResponse:
    """The answer that the events are written to."""
    headers = {hdrs.CONTENT_TYPE: _KIND, "X-Content-Type-Options": "nosniff"} | NO_BUFFERING
    return web.StreamResponse(headers=headers)


async def stream(
    request: web.Request,
    context: Context,
    read: Callable[[int], Awaitable[Messages]],
    after: int,
    changes: Changes,
    *,
    gather_s: float = 0.0,
) -> web.StreamResponse:
    """Send what :func:`read` gives, from behind ``after``, until its last messages or our end.

    A reader that is slow waits for its own connection only: no more is read for it meanwhile.
    A browser that connects again when there will be no more gets 204, so that it stops.

    Args:
        gather_s: how long to wait after a change, so that several are read together.

    Raises:
        Whatever ``read`` raises at first, Denied: too many wait.
    """
    clock = context.core.clock
    with request.app[GATE].long_poll(request), changes as changed:
        found = await read(after)
        if found.last and not found.data and request.method == hdrs.METH_GET and after:
            return web.Response(status=HTTPStatus.NO_CONTENT)
        answer = response()
        await answer.prepare(request)
        if request.method == hdrs.METH_HEAD:
            return answer
        with context.core.measures.listening(request.match_info.route.resource):
            await answer.write(b"retry: 2000\n\n")  # a browser that is cut off waits so long (ms)
            written_at = clock.monotonic()
            while True:
                if found.data:
                    await answer.write(found.data)
                    written_at = clock.monotonic()
                if found.last or context.core.wakeups.closing:
                    break
                if found.more:
                    await clock.sleep(_BETWEEN_S)
                else:
                    quiet_s = clock.monotonic() - written_at
                    if await wait_for(changed, max(0.0, KEEPALIVE_S - quiet_s), clock):
                        await clock.sleep(gather_s)
                if clock.monotonic() - written_at >= KEEPALIVE_S:
                    await answer.write(COMMENT)
                    written_at = clock.monotonic()
                changed.clear()
                try:
                    found = await read(found.reached)
                except (FerrymanError, DatabaseUnavailable):
                    break  # the job was deleted, or the caller asks again and gets the reason
                if not context.access.still_accepted(request):
                    break  # perhaps while it was read
            await answer.write_eof()
    return answer
