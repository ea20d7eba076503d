"""One log line for each request, and what it says of it."""

from __future__ import annotations

from typing import Final

import structlog
from aiohttp import web

from shared.http.authentication import PRINCIPAL
from shared.http.connections import peer_of
from shared.http.numbers import whole_number
from shared.http.origins import SAFE_METHODS
from shared.http.protocol import Connection
from shared.http.rate_limits import CODE
from shared.logs import RateLimiter, shown

log: structlog.stdlib.BoundLogger = structlog.get_logger()

ERROR_CODE: Final = web.RequestKey("outcome", str)
"""The code of a refusal, for the log."""
UPLOADED_ID: Final = web.RequestKey("number", int)
"""Id of the job or payload that an upload became, for the log."""
UPLOADED_AS: Final = web.RequestKey("uploaded_as", tuple[str, str])
"""User and service of the job that an upload became, for the log."""
SENDER: Final = web.RequestKey("sender", str)
"""The address that sent a request which came through a proxy."""
TARGET: Final = web.RequestKey("target", str)
"""What a request turned out to be about, where its path does not say."""
PROBES: Final = frozenset({"/health", "/livez", "/readyz"})
"""Asked again and again by who watches the program."""
_OUTCOMES: Final = {
    "terminate": "cancelled",
    "cancel": "cancelled",
    "kill": "cancelled",
    "retry": "retried",
    "login": "logged in",
    "logout": "logged out",
}
"""Of changes, by a word of their paths."""
_DENIED: Final = frozenset({401, 403, 415, 421})
_DENIED_A_SECOND: Final = 10.0


class RequestLog:
    """Args:
    id_field: the name for the id in a path: "job_id" or "payload_id".
    """

    def __init__(self, id_field: str) -> None:
        self._id_field = id_field
        self._denied = RateLimiter(_DENIED_A_SECOND)

    def __call__(self, request: web.Request, status: int, kind: str = "") -> None:
        """Log one line; reads that succeeded have the level ``debug``."""
        denied = status in _DENIED or request.get(ERROR_CODE) in ("too_many_requests", CODE)
        level = "warning" if denied and status else _level(request, status, kind)
        if not shown(level):
            return
        # Whoever has a connection can cause these in any number.
        limited = level != "debug" and (denied or not request[PRINCIPAL].authenticated)
        count = self._denied.due() if limited else 0
        if count is None:
            return
        principal = request[PRINCIPAL]
        user, service = request.get(UPLOADED_AS, (principal.acts_as or principal.user_id, None))
        fields = {
            "method": request.method,
            "path": request.path[:200],
            "status": status or None,
            "peer": peer_address(request),
            "principal": request[PRINCIPAL].name,
            "user_id": user,
            "service": service,
            "outcome": _outcome(request, status, kind),
            "code": request.get(ERROR_CODE),
            "also_denied": count or None,
            self._id_field: request.get(UPLOADED_ID)
            or whole_number(request.match_info.get("id", "")),
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        if not status:
            log.info("request.aborted", **fields)
        elif denied:
            log.warning("request.denied", **fields)
        elif level == "info":
            log.info("request.done", **fields)
        else:
            log.debug("request.done", **fields)


def _level(request: web.Request, status: int, kind: str) -> str:
    if not status:
        return "info"
    if request.path in PROBES and status in (200, 503):
        return "debug"
    changes = request.method not in SAFE_METHODS
    return "info" if changes or status >= 400 or kind == "application/zip" else "debug"


def _outcome(request: web.Request, status: int, kind: str) -> str:
    """What became of it, in a word that can be searched for."""
    if not status:
        return "aborted"
    if status in _DENIED or request.get(ERROR_CODE) in ("too_many_requests", CODE):
        return "denied"
    if status >= 400:
        return "refused"
    if UPLOADED_ID in request:
        return "accepted"
    if request.method in SAFE_METHODS:
        return "downloaded" if kind == "application/zip" else "read"
    if request.method == "DELETE":
        return "cancelled" if status != 204 and "/jobs/" in request.path else "deleted"
    words = request.path.split("/")
    return next((_OUTCOMES[word] for word in words[::-1] if word in _OUTCOMES), "changed")


def peer_address(request: web.Request) -> str:
    """The address that sent a request; known also after it disconnected."""
    sender: str | None = request.get(SENDER)
    if sender is not None:
        return sender
    protocol = request.protocol
    return protocol.peer if isinstance(protocol, Connection) else peer_of(protocol.peername)
