"""What the routes read of requests, and how they answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog
from aiohttp import hdrs, web

from client_agent.payloads.attempt_keys import Caller
from client_agent.payloads.errors import NoSuchPayload, Refused
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from shared.http.middleware import Handler
from shared.http.numbers import whole_number
from shared.http.refusals import Denied
from shared.http.request_log import ERROR_CODE
from shared.ids import NO_START, Start
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import START, Wire

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
    return Caller(start_of(request), request.query.get("server"), request.query.get("key"))


def start_of(request: web.Request) -> Start:
    """Of the server that asks."""
    text = request.headers.get(START)
    if text is None:
        return NO_START
    try:
        return Start.parse(text)
    except ValueError as problem:
        raise Refused(400, "invalid_start", f"{START}: {problem}") from None


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


log: structlog.stdlib.BoundLogger = structlog.get_logger()

_NO_PAYLOAD: Final[dict[str, Any]] = {
    "id": 0,
    "status": "Unknown",  # not a state of the agent, but one that job-orchestrator servers read
    "loc": "",
    "pid": 0,
    "killed": False,
    "input": {},
}


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception of a handler into a reply."""
    try:
        return await handler(request)
    except ConnectionError:
        raise
    except Exception as problem:  # noqa: BLE001 - defects too: every caller gets a reply
        status, body, headers = reply_to(request, problem)
    request[ERROR_CODE] = body["code"]
    response = web.json_response(body, status=status, headers=headers)
    if request.body_exists and not request.content.at_eof():
        response.force_close()  # the rest of a refused body is not read
    return response


def reply_to(
    request: web.Request, problem: Exception
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """Status, body and headers of the reply to an exception."""
    headers: dict[str, str] = {}
    match problem:
        case Denied():
            code = "unauthorized" if problem.status == 401 else problem.code
            return problem.status, {"code": code, "message": problem.message}, problem.headers
        case NoSuchPayload():
            return 404, _NO_PAYLOAD | {"code": "payload_not_found", "message": str(problem)}, {}
        case Refused():
            refused = problem
        case DatabaseUnavailable():
            refused = Refused(507 if problem.full else 503, "database_unavailable", str(problem))
        case web.HTTPException():
            message = f"{request.path}: {problem.reason}"
            refused = Refused(problem.status, "no_such_route", message)
            headers = {hdrs.ALLOW: problem.headers[hdrs.ALLOW]} if problem.status == 405 else {}
        case _:
            log.error("request.failed", method=request.method, path=request.path, exc_info=problem)
            message = "the agent failed to answer; its log says why"
            refused = Refused(500, "internal_error", message)
    if refused.retry_after_s is not None:
        headers[hdrs.RETRY_AFTER] = str(refused.retry_after_s)
    return refused.status, {"code": refused.code, "message": refused.message}, headers
