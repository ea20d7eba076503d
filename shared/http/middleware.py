"""Middlewares of both programs: request id, authentication, limits, one log line for each request.

The order is ``gate.record``, then the program's own middleware, which turns errors into answers,
then ``gate.admit``, then the handler.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final, Protocol

import structlog
from aiohttp import hdrs, web

from shared.clock import Clock, wait_for
from shared.http.authentication import CALLER, PRINCIPAL, Tokens, caller_of
from shared.http.connections import ConnectionLimits
from shared.http.measured import WAITED, Requests
from shared.http.origins import ALLOWED_HEADERS, ALLOWED_METHODS, SAFE_METHODS, Hosts, Origins
from shared.http.protocol import Connection, UnreadAnswers
from shared.http.proxies import TrustedProxies
from shared.http.rate_limits import RateLimits
from shared.http.refusals import ID_HEADER, REQUEST_ID, Denied, new_request_id
from shared.http.request_body import check_body
from shared.http.request_log import PROBES, SENDER, RequestLog, peer_address
from shared.http.settings import HttpSection
from shared.metrics import Transfers
from shared.principals import Principal, Role

log: structlog.stdlib.BoundLogger = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ALWAYS: Final = PROBES | {"/"}
"""Paths that are answered without a token, and even when the limit of requests is reached."""
METRICS: Final = "/metrics"
"""The one that a token for metrics is good for, beside those that need none."""


class Audit(Protocol):
    """Keeps the requests that changed something, or were to."""

    def add(self, request: web.Request, status: int) -> bool:
        """Add one that was answered with this status (0: its caller has left); returns whether
        the answer has to wait for :meth:`write`.
        """
        ...

    async def write(self) -> None:
        """Keep what was added."""
        ...


class Signed(Protocol):
    """Knows who asks by something that was signed here."""

    def principal(self, request: web.Request) -> Principal | None:
        """None: the request shows nothing of the kind."""
        ...


class Gate:
    """The middlewares, and the counts of requests that they keep.

    Args:
        open_paths: answered without a token, beside ALWAYS.
        open_forms: paths to which a form may be sent without a token.
        id_field: the log's name for the id in a path: "job_id" or "payload_id".
        origins: of web pages that may call it from a browser.
        proxies: addresses and networks of those whose ``X-Forwarded-For`` is believed.
        tokens: who is known; None: the operators whose tokens are in the settings.
        rates: how many requests each caller may send; None: any number.
        signed: each knows who shows something signed in place of a token.
        audit: what keeps the requests that were to change something.
        transfers: where forms and files are counted.
        unread: how many bytes of answers may wait in memory to be read; None: any number.
    """

    def __init__(
        self,
        settings: HttpSection,
        limits: ConnectionLimits,
        open_paths: Collection[str] = (),
        *,
        open_forms: Collection[str] = (),
        id_field: str,
        origins: Collection[str] = (),
        proxies: Collection[str] = (),
        tokens: Tokens | None = None,
        rates: RateLimits | None = None,
        signed: Sequence[Signed] = (),
        audit: Audit | None = None,
        transfers: Transfers | None = None,
        unread: UnreadAnswers | None = None,
    ) -> None:
        self._unread = unread
        self.requests = Requests(transfers or Transfers())
        self._rates, self._signed = rates, signed
        self._log = RequestLog(id_field)
        self._tokens = Tokens({}) if tokens is None else tokens
        if tokens is None:
            self._tokens.use_settings(settings)
        self._audit = audit
        self._hosts = Hosts(settings.host, settings.allowed_hosts or ())
        self._origins, self._proxies = Origins(origins), TrustedProxies(proxies)
        self._limits = limits
        self._open = ALWAYS | frozenset(open_paths)
        self._open_forms = frozenset(open_forms)
        self._handling = 0
        self._waits: Counter[str] = Counter()
        self._in_flight = 0
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    def use_tokens(self, settings: HttpSection) -> None:
        """Know the tokens of these settings from now on, and no others."""
        self._tokens.use_settings(settings)

    def principal(self, request: web.Request) -> Principal:
        """Whose request this is by what it shows. One that goes on for long may show what is not
        good any more.
        """
        shown = (principal for one in self._signed if (principal := one.principal(request)))
        return next(shown, None) or self._tokens.principal(request, peer_address(request))

    # -- around every request

    @property
    def record(self) -> web.middlewares.Middleware:  # type: ignore[name-defined]
        """Gives the request its id and its principal, and logs how it ended."""

        @web.middleware
        async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
            since, request_id = self.requests.now(), new_request_id()
            request[REQUEST_ID] = request_id
            request[SENDER] = self._proxies.client(peer_address(request), request)
            request[PRINCIPAL] = self.principal(request)
            CALLER.set(caller_of(request[PRINCIPAL], peer_address(request)))
            structlog.contextvars.bind_contextvars(
                request_id=request_id, principal=request[PRINCIPAL].name
            )
            self._in_flight += 1
            self._idle.clear()
            try:
                response = await handler(request)
                if self._audit is not None and self._audit.add(request, response.status):
                    await self._audit.write()
                if self._closing and not response.prepared:
                    response.force_close()
            except (ConnectionError, asyncio.CancelledError):
                self._log(request, 0)
                self.requests.done(request, None, since)
                if self._audit is not None:
                    self._audit.add(request, 0)
                raise
            finally:
                self._in_flight -= 1
                if not self._in_flight:
                    self._idle.set()
            self._log(request, response.status, response.content_type)
            self.requests.done(request, response, since)
            return response

        return record

    async def set_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """For ``on_response_prepare``: also answers that are streamed get these."""
        response.headers[ID_HEADER] = request.get(REQUEST_ID) or new_request_id()
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        for name, value in self._origins.answer_headers(request.headers).items():
            known = response.headers.get(name) if name == hdrs.VARY else None
            response.headers[name] = f"{known}, {value}" if known else value

    async def drain(self, seconds: float, clock: Clock) -> bool:
        """Wait until no request is in flight, at most so long; returns whether that is so.

        Once its own shutdown has begun, aiohttp discards what arrives on a connection: an upload in
        flight could never end. So the listening socket is closed first, then requests are waited
        for, then aiohttp stops.
        """
        self._closing = True
        return await wait_for(self._idle, seconds, clock)

    # -- before the handler

    @property
    def admit(self) -> web.middlewares.Middleware:  # type: ignore[name-defined]
        """Calls the handler, or raises Denied."""

        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._check_host(request)
            if request.method == hdrs.METH_OPTIONS and "Access-Control-Request-Method" in (
                request.headers
            ):
                return self._preflight(request)
            self._check_origin(request)
            self._check_authenticated(request)
            check_body(request)
            if request.path in ALWAYS:
                return await handler(request)
            if self._rates is not None:
                self._rates.take(request[PRINCIPAL])
            if self._handling >= self._limits.requests:
                raise Denied(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "too_many_requests",
                    f"{self._handling} requests are under way, the most this program takes at once",
                    {"Retry-After": "2"},
                )
            self._handling += 1
            try:
                answer = await handler(request)
                if self._unread is not None and isinstance(request.protocol, Connection):
                    self._unread.hold(request, answer)
                return answer
            except ConnectionError:
                raise
            except Exception as problem:
                if request.transport is None and isinstance(problem, RuntimeError):
                    # aiohttp raises it for a body that is read too late
                    raise ConnectionError("the peer is gone") from problem
                if request.writer.output_size:
                    # Another answer would become part of the one that has begun.
                    log.exception("answer.broken", path=request.path[:200])
                    raise ConnectionError("the answer had begun") from problem
                raise
            finally:
                self._handling -= 1

        return admit

    def _check_host(self, request: web.Request) -> None:
        for host in request.headers.getall(hdrs.HOST, ()):
            if not self._hosts.known(host):
                raise Denied(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "unknown_host",
                    f"no host is called {host[:100]!r} here; "
                    "if that is a name of this service, its operator adds it to allowed_hosts",
                )

    def _check_origin(self, request: web.Request) -> None:
        if request[PRINCIPAL].role is Role.TICKET:
            return  # no page can make a browser send one that it was not given
        if request.method not in SAFE_METHODS and self._origins.foreign(request.headers):
            origin = request.headers.get(hdrs.ORIGIN, "another site")
            raise Denied(
                HTTPStatus.FORBIDDEN,
                "foreign_origin",
                f"a page of {origin[:100]} may not do this; "
                "if you trust it, the operator adds it to allowed_origins",
            )

    def _preflight(self, request: web.Request) -> web.Response:
        """Answer a browser's CORS preflight: may a page of another origin do this?"""
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

    def _check_authenticated(self, request: web.Request) -> None:
        if code := request[PRINCIPAL].code:
            raise Denied(HTTPStatus.FORBIDDEN, code, request[PRINCIPAL].why)
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else request.path
        safe = request.method in SAFE_METHODS
        is_open = path in (self._open if safe else self._open_forms)
        if request[PRINCIPAL].role is Role.METRICS and not (safe and (is_open or path == METRICS)):
            name, text = request[PRINCIPAL].name, f"its token is good for {METRICS} only"
            raise Denied(HTTPStatus.FORBIDDEN, "not_allowed", f"{name} may not do this: {text}")
        if not request[PRINCIPAL].authenticated and not is_open:
            why, challenge = "the token is missing", "Bearer"
            if hdrs.AUTHORIZATION in request.headers:
                why = request[PRINCIPAL].why or "the token is wrong"
                known = request[PRINCIPAL].why or "it is not known"
                challenge = f'Bearer error="invalid_token", error_description="{known}"'
            raise Denied(
                HTTPStatus.UNAUTHORIZED,
                "not_allowed",
                f"a valid token is needed, {why}: Authorization: Bearer TOKEN",
                {"WWW-Authenticate": challenge},
            )

    # -- long polls

    @contextmanager
    def long_poll(self, request: web.Request) -> Iterator[None]:
        """Around a wait for something to happen; it is cancelled when the caller disconnects.

        Raises:
            Denied: this caller, or all callers, have as many long polls as they may.
        """
        principal = request[PRINCIPAL].name
        caller = f"{principal} {peer_address(request)}"
        full = self._waits.total() >= self._limits.waits
        if full or self._waits[caller] >= self._limits.waits_per_caller:
            raise Denied(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_waits",
                "too many requests wait already; ask without ?wait=, or in a moment",
                {"Retry-After": "5"},
            )
        task, protocol = asyncio.current_task(), request.protocol
        self._waits[caller] += 1
        request[WAITED] = True
        if isinstance(protocol, Connection) and task is not None:
            protocol.cancel_on_disconnect(task)
        try:
            yield
        finally:
            self._waits[caller] -= 1
            if not self._waits[caller]:
                del self._waits[caller]
            if isinstance(protocol, Connection) and task is not None:
                protocol.keep_on_disconnect(task)


GATE: Final = web.AppKey("front", Gate)


def add_middlewares(
    application: web.Application,
    gate: Gate,
    answer_problems: web.middlewares.Middleware,  # type: ignore[name-defined]
) -> None:
    """Put the middlewares before every route."""
    application.middlewares.extend([gate.record, answer_problems, gate.admit])
    application.on_response_prepare.append(gate.set_headers)
    application[GATE] = gate
