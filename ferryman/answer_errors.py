"""What went wrong with a request: refusals and network errors, as errors of the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
from typing import Any, Final

import aiohttp

from ferryman.errors import KINDS, FerrymanError, NoResult, NotReady, NotUnderstood, Refused

UNAVAILABLE: Final = frozenset({502, 503, 504})
"""A proxy without its server, or a server that starts or stops: treated as unreachable."""
_PROXY_STATUSES: Final = frozenset({401, 403, 413, 429}) | UNAVAILABLE
"""Statuses that a proxy before a Ferryman server sends with a text of its own."""
_NOT_YET: Final = frozenset({"not_ended", "not_started", "files_move", "log_moves"})
"""Codes of 409 where there will be something later."""
_NO_ROUTE_CODES: Final = frozenset({"not_found", "method_not_allowed", "no_such_route"})
_TRUST: Final = "FERRYMAN_CA_FILE or ca_file= names a file with the CA that it is of"
_CODE_OF_AGENTS: Final = "unauthorized"
"""Code of an agent's 401; a server has another one."""
_WHY: Final = re.compile(r'error_description="([^"]*)"')
"""Of a header ``WWW-Authenticate``: why the token is not good."""


async def refusal_of(answer: aiohttp.ClientResponse) -> FerrymanError:
    """The error of a problem document, of a JSON body with ``message``, or of some other page."""
    text = await answer.text(errors="replace")
    document: dict[str, Any] = {}
    if "json" in answer.content_type:
        with contextlib.suppress(ValueError):
            parsed = await answer.json(content_type=None)
            document = parsed if isinstance(parsed, dict) else {}
    message = document.get("detail") or document.get("message")
    if not message:
        lines = [] if "html" in answer.content_type else text.strip().splitlines()
        message = f"{answer.status} {answer.reason or ''}".strip()
        message += "".join(f": {line[:200]}" for line in lines[:1])
        if answer.status not in _PROXY_STATUSES:
            return NotUnderstood(str(answer.url.origin()), message)
    if document.get("code") in _NO_ROUTE_CODES:  # an agent, or a server of another version
        return NotUnderstood(str(answer.url.origin()), str(message))
    if answer.status == 401 and document.get("code") == _CODE_OF_AGENTS:
        message = "it is an agent; commands are for the server that uses it"
        return NotUnderstood(str(answer.url.origin()), message)
    if answer.status == 401:
        given = "Authorization" in answer.request_info.headers
        wrong = "the token was not accepted" if given else "no token was given"
        why = _WHY.search(answer.headers.get("WWW-Authenticate", ""))
        wrong += f": {why[1]}" if why and given else ""
        message = wrong if document.get("code") == "not_allowed" else f"{wrong}: {message}"
    return KINDS.get(answer.status, Refused)(
        answer.status,
        str(document.get("code") or ""),
        str(message),
        part=document.get("part"),
        request_id=document.get("request_id") or answer.headers.get("X-Request-ID"),
        retry_after=_seconds(answer.headers.get("Retry-After")),
    )


def no_result(problem: Refused) -> Refused:
    """The refusal of a result or a log; its class says whether there will be one."""
    if problem.status not in {409, 410}:
        return problem
    return problem.as_kind(NotReady if problem.code in _NOT_YET else NoResult)


def error_of_body(problem: BaseException) -> FerrymanError | None:
    """The error that producing the body raised; aiohttp wraps it as an error of the connection."""
    cause = problem.__cause__
    while cause is not None and not isinstance(cause, FerrymanError):
        cause = cause.__cause__
    return cause


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None  # a date: too rare to be worth it


def describe(problem: BaseException) -> str:
    """What the network reports, without the library's own words."""
    if isinstance(problem, aiohttp.ClientConnectorError):
        error = problem.os_error
        if isinstance(error, ssl.SSLError):
            return _describe_tls(error)
        if error.errno is not None and error.errno > 0:
            # asyncio says "Connect call failed" in its place; only Windows knows its own numbers.
            return os.strerror(error.errno) if os.name == "posix" else str(error)
        return error.strerror or str(error)
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {problem.certificate_error}; {_TRUST}"
    if isinstance(problem, TimeoutError | asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(problem, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    if isinstance(problem, aiohttp.ClientPayloadError):
        return "the connection broke off in the middle of the answer"
    return str(problem) or type(problem).__name__


def _describe_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be verified: {error.verify_message}; {_TRUST}"
    return f"it does not speak TLS there ({error.reason or error}): http:// in place of https://?"
