"""Errors to answers, once: RFC 9457 below ``/api/``, job-orchestrator's shape on its routes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import web

from server.domain.allowances import OverQuota
from server.domain.errors import (
    AlreadyEnded,
    BadField,
    BundleTooLarge,
    Conflict,
    FerrymanError,
    KeyReused,
    NotAllowed,
    NotFound,
)
from server.domain.permits import PermitRefused
from shared.http.middleware import Handler
from shared.http.refusals import REQUEST_ID, Denied
from shared.http.request_log import ERROR_CODE
from shared.logs import RateLimiter
from shared.multipart.parser import FormRefused
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import Problem, ReferenceProblem

log = structlog.get_logger()

_STATUS: Final[dict[type[FerrymanError], HTTPStatus]] = {
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    NotAllowed: HTTPStatus.FORBIDDEN,
    PermitRefused: HTTPStatus.FORBIDDEN,
    BadField: HTTPStatus.BAD_REQUEST,
    BundleTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    KeyReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    FerrymanError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
_LOGGED_A_SECOND: Final = 10.0

ErrorPage = Callable[[web.Request, "Refusal"], web.Response]
"""Makes the page of a refusal."""
BACK: Final = web.RequestKey("back", str)
"""Address that the page of a refusal leads back to."""


class Refusal(Exception):
    """An answer other than success.

    Attributes:
        part: the form's part or field that is wrong.
        job_id, state: the job it is about, if any.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        part: str | None = None,
        retry_after_s: int | None = None,
        job_id: int = 0,
        state: str = "Unknown",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.part, self.retry_after_s = part, retry_after_s
        self.job_id, self.state = job_id, state
        self.headers = dict(headers or {})


def translate(problem: Exception) -> Refusal | None:
    """The answer that an exception means; None: a defect of the server."""
    match problem:
        case Refusal():
            return problem
        case AlreadyEnded():
            return Refusal(
                409, problem.code, str(problem), job_id=problem.job_id, state=problem.current
            )
        case Denied():
            return Refusal(problem.status, problem.code, problem.message, headers=problem.headers)
        case OverQuota():
            wait_s = problem.retry_after_s
            status = 413 if wait_s is None else 429
            return Refusal(status, problem.code, str(problem), retry_after_s=wait_s)
        case FerrymanError():
            return Refusal(
                next(_STATUS[kind] for kind in type(problem).__mro__ if kind in _STATUS),
                problem.code,
                str(problem),
                part=problem.field if isinstance(problem, BadField) else None,
            )
        case FormRefused():
            return Refusal(problem.status, problem.code, problem.message, part=problem.part)
        case DatabaseUnavailable():
            status = HTTPStatus.INSUFFICIENT_STORAGE if problem.full else 503
            return Refusal(status, "database_unavailable", str(problem), retry_after_s=30)
        case OSError() if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            return Refusal(507, "disk_full", "the server's disk is full", retry_after_s=60)
        case OSError() if problem.errno in (errno.EMFILE, errno.ENFILE):
            message = "the server has too many files open; try again in a moment"
            return Refusal(503, "too_many_open_files", message, retry_after_s=2)
        case OSError() if problem.errno in (errno.EROFS, errno.EACCES, errno.EIO):
            message = f"the server cannot write its data folder: {problem.strerror}"
            return Refusal(503, "storage_unavailable", message, retry_after_s=30)
        case web.HTTPException():
            message = {
                404: "no such route",
                405: f"the route takes another method: {problem.headers.get('Allow', '')}",
            }.get(problem.status, problem.reason)
            code = HTTPStatus(problem.status).name.lower()
            allow = problem.headers.get("Allow")
            return Refusal(
                problem.status, code, message, headers={"Allow": allow} if allow else None
            )
    return None


def problems(page: ErrorPage) -> web.middlewares.Middleware:  # type: ignore[name-defined]
    """The middleware that turns whatever goes wrong into an answer.

    Args:
        page: the same for people.
    """

    failed, unavailable = RateLimiter(_LOGGED_A_SECOND), RateLimiter(_LOGGED_A_SECOND)

    @web.middleware
    async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPRedirection, ConnectionError):
            raise
        except Exception as problem:
            refusal = translate(problem)
            if refusal is None:
                if (count := failed.due()) is not None:
                    log.exception(
                        "request.failed",
                        method=request.method,
                        path=request.path,
                        **({"also_failed": count} if count else {}),
                    )
                message = (
                    f"something went wrong here; the log has it under request {request[REQUEST_ID]}"
                )
                refusal = Refusal(500, "internal_error", message)
            elif refusal.status >= 500 and (count := unavailable.due()) is not None:
                log.warning(
                    "request.refused",
                    path=request.path,
                    status=refusal.status,
                    error=refusal.message,
                    **({"also_refused": count} if count else {}),
                )
            return answer(request, refusal, page)

    return answer_problems


def wants_page(request: web.Request) -> bool:
    """Whether a person's browser opens this, or a script that puts parts into our pages.

    Browsers on plain HTTP send no ``Sec-Fetch-Mode``, but say that they read XHTML. The mere word
    text/html says nothing: Java's clients have it in every request.
    """
    headers = request.headers
    return (
        headers.get("Sec-Fetch-Mode") == "navigate"
        or "application/xhtml+xml" in headers.get("Accept", "")
        or "HX-Request" in headers
    )


def answer(request: web.Request, refusal: Refusal, page: ErrorPage) -> web.Response:
    """The refusal in the shape of the route."""
    request[ERROR_CODE] = refusal.code
    if wants_page(request):
        response = page(request, refusal)
    elif request.path.startswith("/api/"):
        body = Problem(
            title=HTTPStatus(refusal.status).phrase,
            status=refusal.status,
            detail=refusal.message,
            code=refusal.code,
            part=refusal.part,
            request_id=request.get(REQUEST_ID),
        )
        response = web.Response(
            status=refusal.status,
            text=body.model_dump_json(exclude_none=True),
            content_type="application/problem+json",
        )
    else:
        shape = ReferenceProblem(
            id=refusal.job_id,
            status=refusal.state,
            message=refusal.message,
            code=refusal.code,
            part=refusal.part,
        )
        response = web.Response(
            status=refusal.status,
            text=shape.model_dump_json(exclude_none=True),
            content_type="application/json",
        )
    if refusal.retry_after_s is not None:
        response.headers["Retry-After"] = str(refusal.retry_after_s)
    response.headers.update(refusal.headers)
    if request.body_exists and not request.content.at_eof():
        response.force_close()  # the rest of a refused body is of no interest
    return response
