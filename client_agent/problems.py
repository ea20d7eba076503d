"""Errors to answers, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog
from aiohttp import hdrs, web

from client_agent.condition import RETRY_AFTER_S
from client_agent.errors import (
    DigestMismatch,
    KeyRefused,
    NoSuchPayload,
    NotEnded,
    Refused,
    StaleAttempt,
    SubmitInProgress,
)
from shared.database import DatabaseUnavailable
from shared.http.front import OUTCOME, Handler
from shared.http.refusals import Denied

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_EMPTY: Final[dict[str, Any]] = {
    "id": 0,
    "status": "Unknown",  # no state of ours: what a job-orchestrator server can read
    "loc": "",
    "pid": 0,
    "killed": False,
    "input": {},
}


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever goes wrong into an answer."""
    try:
        return await handler(request)
    except ConnectionError:
        raise
    except Exception as problem:  # noqa: BLE001 - defects too: whoever asked gets an answer
        status, body, headers = _refusal(request, problem)
    request[OUTCOME] = body["code"]
    response = web.json_response(body, status=status, headers=headers)
    if request.body_exists and not request.content.at_eof():
        response.force_close()  # the rest of a refused body is of no interest
    return response


def _refusal(
    request: web.Request, problem: Exception
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """Status, body and headers of the answer that an exception means."""
    status, code, message = 500, "internal_error", "the agent failed to answer; its log says why"
    headers: dict[str, str] = {}
    match problem:
        case Denied():
            code = "unauthorized" if problem.status == 401 else problem.code
            return problem.status, {"code": code, "message": problem.message}, problem.headers
        case Refused():
            status, code, message = problem.status, problem.code, problem.message
        case NoSuchPayload():
            return 404, _EMPTY | {"code": "payload_not_found", "message": str(problem)}, {}
        case NotEnded():
            status, code, message = 409, "not_ended", str(problem)
        case KeyRefused():
            status, code, message = 409, "key_refused", str(problem)
        case DigestMismatch():
            status, code, message = 409, "digest_mismatch", str(problem)
        case SubmitInProgress():
            status, code, message = 409, "submit_in_progress", str(problem)
            headers = {hdrs.RETRY_AFTER: "1"}
        case StaleAttempt():
            status, code, message = 409, "stale_attempt", str(problem)
        case DatabaseUnavailable():
            status, code = 507 if problem.full else 503, "database_unavailable"
            message = str(problem)
        case web.HTTPException():
            status, code = problem.status, "no_such_route"
            message = f"{request.path}: {problem.reason}"
            headers = {hdrs.ALLOW: problem.headers[hdrs.ALLOW]} if status == 405 else {}
        case _:
            log.error("request.failed", method=request.method, path=request.path, exc_info=problem)
    if status in (503, 507):
        headers[hdrs.RETRY_AFTER] = str(RETRY_AFTER_S)
    return status, {"code": code, "message": message}, headers
