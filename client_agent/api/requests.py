"""What the routes read of requests, and how they answer."""

from __future__ import annotations

from typing import Final

from aiohttp import hdrs, web

from client_agent.payloads.attempt_keys import Caller
from client_agent.payloads.errors import NoSuchPayload, Refused
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from shared.http.numbers import whole_number
from shared.wire import Wire

ID: Final = "{id:[0-9]{1,18}}"
"""Of a payload, in a path."""
_MAX_NUMBER_LEN: Final = 32


def stream(content_type: str) -> web.StreamResponse:
    """An answer that proxies pass on piece by piece."""
    return web.StreamResponse(
        headers={
            hdrs.CONTENT_TYPE: content_type,
            hdrs.CACHE_CONTROL: "no-store",
            "X-Accel-Buffering": "no",
        }
    )


def json_answer(model: Wire, status: int = 200) -> web.Response:
    return web.Response(
        text=model.model_dump_json(), status=status, content_type="application/json"
    )


def id_of(request: web.Request) -> int:
    return int(request.match_info["id"])


async def keyed(request: web.Request, payloads: Payloads) -> Payload:
    """The payload of the path, if it has the key of the query, or there is none. Raises
    NoSuchPayload."""
    payload = await payloads.get(id_of(request))
    if request.query.get("key") not in (None, payload.key):
        raise NoSuchPayload(payload.id)
    return payload


def caller(request: web.Request) -> Caller:
    return Caller(lease(request), request.query.get("server"), request.query.get("key"))


def lease(request: web.Request) -> int:
    return int_param(request, "lease")


def int_param(request: web.Request, name: str) -> int:
    text = request.query.get(name) or "0"
    number = whole_number(text)
    if number is None:
        raise _not_a_number(name, text)
    return number


def seconds_param(request: web.Request, name: str) -> float:
    text = request.query.get(name) or "0"
    try:
        number = float(text) if len(text) <= _MAX_NUMBER_LEN else -1.0
    except ValueError:
        number = -1.0
    if not 0 <= number < 2**53:
        raise _not_a_number(name, text)
    return number


def _not_a_number(name: str, text: str) -> Refused:
    shown = text[:_MAX_NUMBER_LEN]
    return Refused(400, "invalid_query", f"{name}: {shown!r} is not a number from 0 up")
