"""How a client reaches its server, and its requests and answers; retried while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypedDict, TypeVar
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic import BaseModel, ValidationError
from yarl import URL

from ferryman.clock import Clock
from ferryman.defaults import check_url
from ferryman.errors import (
    KINDS,
    BadArgument,
    FerrymanError,
    NoResult,
    NotReady,
    NotUnderstood,
    Refused,
    TryLater,
    Unreachable,
)


class ClientOptions(TypedDict, total=False):
    """How a client reaches its server, and for whom it asks. All may be left out."""

    token: str | None
    """Where the server asks for one."""
    user: str | None
    """Whose jobs are submitted, unless ``submit`` says otherwise. Not needed with the token of a
    user, nor with ``act_as``."""
    act_as: str | None
    """The user for whom a portal asks: the client sees and changes only what is that user's."""
    timeout: float
    """Seconds without a byte after which a connection counts as broken; 60."""
    retry_for: float
    """Seconds to keep trying while the server cannot be reached; 15. Trying again never makes a
    second job."""
    headers: Mapping[str, str] | None
    """Sent with every request, for what stands before the server."""
    proxy: str | None
    """URL of an HTTP proxy; None: that of the environment."""
    trust_env: bool
    """Take the proxy from ``HTTPS_PROXY`` and the like; never for this machine itself. True."""
    ca_file: AnyPath | None
    """Certificates (PEM) to trust in place of the system's."""
    client_cert: AnyPath | None
    """Certificate (PEM) that shows who the client is; its key is in the same file, or in"""
    client_key: AnyPath | None
    """(PEM, without a password)."""
    clock: Clock
    """For tests."""


AnyPath: TypeAlias = str | os.PathLike[str]

_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE: Final = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Connection:
    """What every request to a server has in common."""

    base: URL
    headers: Mapping[str, str]
    proxy: str | None
    tls: ssl.SSLContext | bool
    """True: the system's certificates."""


def connection(url: str, options: ClientOptions) -> Connection:
    """See :class:`ferryman.Client` for the arguments.

    Raises:
        BadArgument: one of them cannot be right; certificates that cannot be read, too.
    """
    check_url(url)
    base, proxy = URL(url), options.get("proxy")
    if proxy is None and options.get("trust_env", True):
        proxy = _proxy_of_environment(base)
    elif proxy is not None and URL(proxy).scheme not in {"http", "https"}:
        raise BadArgument(f"{proxy!r} is not a proxy's URL such as http://proxy.example.org:3128")
    headers = _headers(options.get("token"), options.get("act_as"), options.get("headers") or {})
    return Connection(base, headers, proxy, _tls(base, options))


def _headers(token: str | None, act_as: str | None, own: Mapping[str, str]) -> dict[str, str]:
    headers = {}
    for name, value in own.items():
        if not _HEADER.fullmatch(name) or not _LINE.fullmatch(value):
            raise BadArgument(f"the header {name!r} has characters that no header can carry")
        headers[name] = value
    if token:
        if not _VISIBLE.fullmatch(token):
            raise BadArgument(
                "the token has a space, a line end or another character that no token has; "
                "was it read from a file with Windows line ends?"
            )
        headers["Authorization"] = f"Bearer {token}"
    if act_as is not None:
        if not _VISIBLE.fullmatch(act_as):
            raise BadArgument(f"act_as: {act_as!r} is not the name of a user")
        headers["Ferryman-Act-As"] = act_as
    return headers


def _proxy_of_environment(base: URL) -> str | None:
    # Not aiohttp's trust_env: that reads ~/.netrc, too, and fails where there is a token.
    host = base.host or ""
    if is_this_machine(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    return proxies.get(base.scheme) or proxies.get("all")


def is_this_machine(host: str) -> bool:
    """Whether it is ``localhost``, or an address of the loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls(base: URL, options: ClientOptions) -> ssl.SSLContext | bool:
    ca_file, client_cert = options.get("ca_file"), options.get("client_cert")
    client_key = options.get("client_key")
    if client_key is not None and client_cert is None:
        raise BadArgument("client_key without client_cert: give both, or client_cert with both in")
    if ca_file is None and client_cert is None:
        return True
    if base.scheme != "https":
        raise BadArgument(f"certificates are for https://, and the server's URL is {str(base)!r}")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as problem:
        raise BadArgument(f"ca_file {ca_file}: {_why(problem)}") from problem
    if client_cert is not None:
        try:
            # The empty password: otherwise OpenSSL asks at the terminal for that of the key.
            context.load_cert_chain(client_cert, client_key, password="")
        except (OSError, ValueError) as problem:
            files = " and ".join(str(one) for one in (client_cert, client_key) if one is not None)
            raise BadArgument(f"client_cert {files}: {_why(problem)}") from problem
    return context


def _why(problem: Exception) -> str:
    if isinstance(problem, ssl.SSLError):
        if problem.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        return "not a file with what is needed in PEM form, without a password"
    return getattr(problem, "strerror", None) or str(problem)


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


T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

FIRST_RETRY_PAUSE_S: Final = 0.1
MAX_RETRY_PAUSE_S: Final = 2.0
AT_ONCE: Final = 100
"""Connections for requests that are answered at once; as many for those that are held."""
_LONG_POLL_S: Final = 30.0
_RETRIED_CODES: Final = frozenset({"too_many_uploads", "rate_limited", "too_many_waits"})
"""Codes of 429 that pass by themselves within seconds, and before which nothing was done."""


class Transport:
    """HTTP requests to one server.

    Args:
        timeout: seconds without a byte after which a connection counts as broken.
        retry_for: seconds to keep trying while the server is away; 0: one try.
    """

    def __init__(
        self, connection: Connection, *, timeout: float, retry_for: float, clock: Clock
    ) -> None:
        self._connection = connection
        self.base = connection.base
        self.retry_for = retry_for
        self.clock = clock
        self.timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._held_session: aiohttp.ClientSession | None = None
        """Apart, so that waiting for many jobs keeps no other request waiting."""
        self._held = 0

    async def open(self) -> None:
        self._session, self._held_session = self._new_session(), self._new_session()

    def _new_session(self) -> aiohttp.ClientSession:
        own = self._connection
        return aiohttp.ClientSession(
            headers=own.headers,
            proxy=own.proxy,
            connector=aiohttp.TCPConnector(ssl=own.tls, limit=AT_ONCE),
        )

    async def close(self) -> None:
        for session in (self._session, self._held_session):
            if session is not None:
                await session.close()
        self._session = self._held_session = None

    def long_poll_s(self) -> float:
        """For how long to ask the server to wait with its answer: less where more requests are
        held than there are connections, so that each has its turn.
        """
        return max(1.0, _LONG_POLL_S * min(1.0, AT_ONCE / (self._held + 1)))

    async def get(
        self,
        path: str,
        model: type[M],
        *,
        query: Mapping[str, str] | None = None,
        hold_s: float = 0,
    ) -> M:
        """GET a JSON document, tried again while the server is away.

        Args:
            hold_s: the server was asked to wait with its answer for up to so many seconds.

        Raises:
            Unreachable, NotUnderstood, Refused
        """
        return await self.retry(lambda: self.get_once(path, model, query=query, hold_s=hold_s))

    async def get_once(
        self,
        path: str,
        model: type[M],
        *,
        query: Mapping[str, str] | None = None,
        hold_s: float = 0,
    ) -> M:
        """:meth:`get`, tried once."""
        async with self.answer("GET", path, query=query, hold_s=hold_s) as answer:
            return await self.read(answer, model)

    async def post(
        self,
        path: str,
        model: type[M],
        *,
        query: Mapping[str, str] | None = None,
        json: Mapping[str, Any] | None = None,
        hold_s: float = 0,
    ) -> tuple[int, M]:
        """POST what may be repeated; HTTP status (below 400) and JSON document."""

        async def once() -> tuple[int, M]:
            async with self.answer("POST", path, query=query, json=json, hold_s=hold_s) as answer:
                return answer.status, await self.read(answer, model)

        return await self.retry(once)

    async def retry(self, once: Callable[[], Awaitable[T]]) -> T:
        """Call ``once`` until it succeeds, fails for good, or the server is away for too long."""
        away_since: float | None = None
        pause = FIRST_RETRY_PAUSE_S
        while True:
            try:
                return await once()
            except (Unreachable, TryLater) as problem:
                if isinstance(problem, TryLater):
                    if problem.status not in UNAVAILABLE and problem.code not in _RETRIED_CODES:
                        raise
                    pause = max(pause, problem.retry_after or 0)
                now = self.clock.monotonic()
                away_since = now if away_since is None else away_since
                if now + pause - away_since > self.retry_for:
                    raise
            await self.clock.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_PAUSE_S)

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: AsyncIterator[bytes] | None = None,
        json: Mapping[str, Any] | None = None,
        hold_s: float = 0,
        expect_continue: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One try; a connection that breaks while the answer is read is Unreachable, too.

        Args:
            expect_continue: send the body only when the server says "100 Continue".
        """
        session = self._held_session if hold_s else self._session
        if session is None:
            raise RuntimeError("not open: use `async with Client(…) as client`")
        self._held += bool(hold_s)
        try:
            async with session.request(
                method,
                self.base / path,
                params=query,
                headers=headers,
                data=body,
                json=json,
                expect100=expect_continue,
                allow_redirects=body is None,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self.timeout, sock_read=self.timeout + hold_s
                ),
            ) as answer:
                if answer.status >= 400:
                    raise await refusal_of(answer)
                yield answer
        except FerrymanError:
            raise
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as problem:
            own_error = error_of_body(problem)
            if own_error is not None:
                raise own_error from None
            raise Unreachable(str(self.base), describe(problem)) from problem
        except aiohttp.ClientError as problem:
            raise NotUnderstood(str(self.base), describe(problem)) from problem
        finally:
            self._held -= bool(hold_s)

    async def read(self, answer: aiohttp.ClientResponse, model: type[M]) -> M:
        """The JSON document of an answer. Raises NotUnderstood."""
        try:
            return model.model_validate_json(await answer.read())
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise NotUnderstood(
                str(answer.url), f"{where}: {first['msg']}" if where else first["msg"]
            ) from problem
