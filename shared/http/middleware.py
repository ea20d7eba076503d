"""What every request passes, in both programs: its id, who makes it, whether it may come in, and
one line in the log of how it ended.

Two middlewares with the program's own between them, which gives refusals their shape:
``front.record``, then answers to problems, then ``front.admit``, then the handler.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import hdrs, web

from shared.clock import Clock, wait_for
from shared.http.authentication import NOBODY, PRINCIPAL, Principal, Tokens
from shared.http.connections import Room, peer_of
from shared.http.numbers import whole_number
from shared.http.origins import (
    ALLOWED_HEADERS,
    ALLOWED_METHODS,
    SAFE_METHODS,
    Hosts,
    Origins,
)
from shared.http.protocol import Connection
from shared.http.refusals import Denied
from shared.http.request_body import check_body
from shared.http.settings import HttpSection
from shared.logs import Limiter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST_ID: Final = web.RequestKey("request_id", str)
OUTCOME: Final = web.RequestKey("outcome", str)
"""The code of a refusal, for the log."""
NUMBER: Final = web.RequestKey("number", int)
"""Of the job or payload that an upload became, for the log."""
ALWAYS: Final = frozenset({"/", "/health"})
"""Paths that are answered however much is under way, and without a token."""
_DENIED: Final = frozenset({401, 403, 415, 421})
_DENIED_A_SECOND: Final = 10.0


class Front:
    """The middlewares, and what they count.

    Args:
        open_paths: answered without a token, beside ALWAYS.
        number: what the log calls the number in a path: "job_id" or "payload_id".
    """

    def __init__(
        self, settings: HttpSection, room: Room, open_paths: Collection[str] = (), *, number: str
    ) -> None:
        self._number = number
        self._tokens = Tokens(settings.all_tokens())
        self._hosts = Hosts(settings.host, settings.allowed_hosts or ())
        self._origins = Origins(settings.allowed_origins or ())
        self._open = ALWAYS | frozenset(open_paths)
        self._room = room
        self._working = 0
        self._waits: Counter[str] = Counter()
        self._under_way = 0
        self._closing = False
        self._none = asyncio.Event()
        self._none.set()
        self._denied = Limiter(_DENIED_A_SECOND)

    # -- around everything

    @property
    def record(self) -> web.middlewares.Middleware:  # type: ignore[name-defined]
        """The request's id, and one line about how it ended."""

        @web.middleware
        async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
            request_id = secrets.token_hex(8)
            request[REQUEST_ID] = request_id
            structlog.contextvars.bind_contextvars(request_id=request_id)
            self._under_way += 1
            self._none.clear()
            try:
                response = await handler(request)
                if self._closing and not response.prepared:
                    response.force_close()
            except (ConnectionError, asyncio.CancelledError):
                self._log(request, 0)
                raise
            finally:
                self._under_way -= 1
                if not self._under_way:
                    self._none.set()
            self._log(request, response.status, response.content_type)
            return response

        return record

    async def set_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """For ``on_response_prepare``: also answers that are streamed get these."""
        response.headers["X-Request-ID"] = request.get(REQUEST_ID, "")
        for name, value in self._origins.answer_headers(request.headers).items():
            response.headers[name] = value

    async def all_ended(self, seconds: float, clock: Clock) -> bool:
        """Wait until no request is under way, at most so long; whether that is so.

        aiohttp throws away what arrives on a connection once its own shutdown has begun: an upload
        under way could never end. So the listening socket is closed first, then these are awaited,
        then aiohttp stops.
        """
        self._closing = True
        return await wait_for(self._none, seconds, clock)

    def _log(self, request: web.Request, status: int, kind: str = "") -> None:
        """One line; reads that went well are left to ``debug``."""
        fields = {
            "method": request.method,
            "path": request.path[:200],
            "status": status or None,
            "peer": _peer(request),
            "principal": request.get(PRINCIPAL, NOBODY).name,
            "code": request.get(OUTCOME),
            self._number: request.get(NUMBER) or whole_number(request.match_info.get("id", "")),
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        if not status:
            log.info("request.aborted", **fields)
        elif status in _DENIED or fields.get("code") == "too_many_requests":
            if (count := self._denied.due()) is not None:
                log.warning("request.denied", **fields, **({"also_denied": count} if count else {}))
        elif request.method not in SAFE_METHODS or status >= 400 or kind == "application/zip":
            log.info("request.done", **fields)
        else:
            log.debug("request.done", **fields)

    # -- before the handler

    @property
    def admit(self) -> web.middlewares.Middleware:  # type: ignore[name-defined]
        """Let the request in, with its principal, or raise Denied."""

        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._check_host(request)
            if request.method == hdrs.METH_OPTIONS and "Access-Control-Request-Method" in (
                request.headers
            ):
                return self._preflight(request)
            self._check_origin(request)
            request[PRINCIPAL] = self._principal(request)
            check_body(request)
            if request.path in ALWAYS:
                return await handler(request)
            if self._working >= self._room.requests:
                raise Denied(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "too_many_requests",
                    f"{self._working} requests are at work, the most this program takes at once",
                    {"Retry-After": "2"},
                )
            self._working += 1
            try:
                return await handler(request)
            except RuntimeError as problem:
                if request.transport is None:  # aiohttp's word where a body is read too late
                    raise ConnectionError("the peer is gone") from problem
                raise
            finally:
                self._working -= 1

        return admit

    def _check_host(self, request: web.Request) -> None:
        for host in request.headers.getall(hdrs.HOST, ()):
            if not self._hosts.known(host):
                raise Denied(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "unknown_host",
                    f"nobody is called {host[:100]!r} here; "
                    "if that is a name of this service, its operator adds it to allowed_hosts",
                )

    def _check_origin(self, request: web.Request) -> None:
        if request.method not in SAFE_METHODS and self._origins.foreign(request.headers):
            origin = request.headers.get(hdrs.ORIGIN, "another site")
            raise Denied(
                HTTPStatus.FORBIDDEN,
                "foreign_origin",
                f"a page of {origin[:100]} may not do this; "
                "if you trust it, the operator adds it to allowed_origins",
            )

    def _preflight(self, request: web.Request) -> web.Response:
        """What a browser asks before it lets a page of another origin do something."""
        if self._origins.allowed(request.headers) is None:
            origin = request.headers.get(hdrs.ORIGIN, "")
            raise Denied(
                HTTPStatus.FORBIDDEN,
                "foreign_origin",
                f"pages of {origin[:100]!r} may not call; "
                "if you trust them, the operator adds it to allowed_origins",
            )
        return web.Response(
            status=HTTPStatus.NO_CONTENT,
            headers={
                "Access-Control-Allow-Methods": ALLOWED_METHODS,
                "Access-Control-Allow-Headers": ALLOWED_HEADERS,
                "Access-Control-Max-Age": "600",
            },
        )

    def _principal(self, request: web.Request) -> Principal:
        found = self._tokens.principal(request)
        if not found.known:
            resource = request.match_info.route.resource
            path = resource.canonical if resource is not None else request.path
            if path not in self._open or request.method not in SAFE_METHODS:
                wrong = "is wrong" if hdrs.AUTHORIZATION in request.headers else "is missing"
                raise Denied(
                    HTTPStatus.UNAUTHORIZED,
                    "not_allowed",
                    f"a valid token is needed, the token {wrong}: Authorization: Bearer TOKEN",
                    {"WWW-Authenticate": "Bearer"},
                )
        return found

    # -- long polls

    @contextmanager
    def waiting(self, request: web.Request) -> Iterator[None]:
        """Around a wait for something to happen: ends when its caller is gone.

        Raises:
            Denied: as many wait as may, of this caller or in all.
        """
        principal = request[PRINCIPAL].name
        caller = f"{principal} {_peer(request)}"
        full = self._waits.total() >= self._room.waits
        if full or self._waits[caller] >= self._room.waits_per_caller:
            raise Denied(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_waits",
                "too many requests wait already; ask without ?wait=, or in a moment",
                {"Retry-After": "5"},
            )
        task, protocol = asyncio.current_task(), request.protocol
        self._waits[caller] += 1
        if isinstance(protocol, Connection) and task is not None:
            protocol.end_with_connection(task)
        try:
            yield
        finally:
            self._waits[caller] -= 1
            if not self._waits[caller]:
                del self._waits[caller]
            if isinstance(protocol, Connection) and task is not None:
                protocol.goes_on(task)


FRONT: Final = web.AppKey("front", Front)


def _peer(request: web.Request) -> str:
    """Known also when it has gone."""
    protocol = request.protocol
    return protocol.peer if isinstance(protocol, Connection) else peer_of(protocol.peername)


def add_front(
    application: web.Application,
    front: Front,
    answer_problems: web.middlewares.Middleware,  # type: ignore[name-defined]
) -> None:
    """Put the middlewares before every route."""
    application.middlewares.extend([front.record, answer_problems, front.admit])
    application.on_response_prepare.append(front.set_headers)
    application[FRONT] = front
