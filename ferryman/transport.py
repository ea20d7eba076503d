"""Requests and their answers: tried again while the server is away, refusals turned into errors."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic import BaseModel, ValidationError
from yarl import URL

from ferryman.clock import Clock
from ferryman.errors import (
    KINDS,
    BadArgument,
    FerrymanError,
    NotUnderstood,
    Refused,
    TryLater,
    Unreachable,
)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
AWAY: Final = frozenset({502, 503, 504})
"""A proxy without its server, or a server that starts or stops: as good as unreachable."""
_SOON: Final = frozenset({"too_many_uploads"})
"""Codes of what passes by itself: others of the same user's uploads are under way."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_OF_PROXIES: Final = frozenset({401, 403, 413, 429}) | AWAY
"""What a proxy before a Ferryman server says in words of its own."""
_NO_ROUTE: Final = frozenset({"not_found", "method_not_allowed", "no_such_route"})


class Transport:
    """Talks to one server.

    Args:
        url: of the server, with a path where it sits below one.
        token: for ``Authorization: Bearer``.
        timeout: seconds without a byte after which a connection counts as broken.
        patience: seconds to keep trying while the server is away; 0: one try.
        headers: sent with every request.
        trust_env: take the proxy from the environment.

    Raises:
        BadArgument: not an http or https URL, or a token that no header can carry.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        timeout: float,
        patience: float,
        headers: Mapping[str, str] | None,
        trust_env: bool,
        clock: Clock,
    ) -> None:
        self.base = _base(url)
        self.patience = patience
        self.clock = clock
        self.timeout = timeout
        # Not aiohttp's trust_env: that reads ~/.netrc, too, and fails where there is a token.
        bypassed = not trust_env or proxy_bypass(self.base.host or "")
        self._proxy = None if bypassed else getproxies().get(self.base.scheme)
        self._headers = dict(headers or {})
        if token:
            if not _TOKEN.fullmatch(token):
                raise BadArgument(
                    "the token has a space, a line end or another character that no token has; "
                    "was it read from a file with Windows line ends?"
                )
            self._headers["Authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(headers=self._headers, proxy=self._proxy)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(
        self,
        path: str,
        model: type[M],
        *,
        query: Mapping[str, str] | None = None,
        hold_s: float = 0,
    ) -> M:
        """GET a JSON document; see :meth:`request`."""
        _, document = await self.request("GET", path, model, query=query, hold_s=hold_s)
        return document

    async def request(
        self,
        method: str,
        path: str,
        model: type[M],
        *,
        query: Mapping[str, str] | None = None,
        hold_s: float = 0,
    ) -> tuple[int, M]:
        """One request that may be repeated, and its JSON answer.

        Args:
            hold_s: the server has been asked to hold the answer back for up to so many seconds.

        Returns:
            HTTP status (below 400) and document.

        Raises:
            Unreachable, NotUnderstood, Refused
        """

        return await self.persist(
            lambda: self.fetch(method, path, model, query=query, hold_s=hold_s)
        )

    async def fetch(
        self,
        method: str,
        path: str,
        model: type[M],
        *,
        query: Mapping[str, str] | None = None,
        hold_s: float = 0,
    ) -> tuple[int, M]:
        """:meth:`request`, tried once."""
        async with self.answer(method, path, query=query, hold_s=hold_s) as answer:
            return answer.status, await self.read(answer, model)

    async def persist(self, once: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, fails for good, or the server has been away for too long."""
        away_since: float | None = None
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await once()
            except (Unreachable, TryLater) as problem:
                if isinstance(problem, TryLater):
                    if problem.status not in AWAY and problem.code not in _SOON:
                        raise
                    pause = max(pause, problem.retry_after or 0)
                now = self.clock.monotonic()
                away_since = now if away_since is None else away_since
                if now + pause - away_since > self.patience:
                    raise
            await self.clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: AsyncIterator[bytes] | None = None,
        hold_s: float = 0,
        ask_first: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One try; whatever breaks while the answer is read is told as Unreachable, too.

        Args:
            ask_first: send the body only when the server says "100 Continue".
        """
        if self._session is None:
            raise RuntimeError("not open: use `async with Client(…) as client`")
        try:
            async with self._session.request(
                method,
                self.base / path,
                params=query,
                headers=headers,
                data=body,
                expect100=ask_first,
                allow_redirects=body is None,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self.timeout, sock_read=self.timeout + hold_s
                ),
            ) as answer:
                if answer.status >= 400:
                    raise await _refusal(answer)
                yield answer
        except FerrymanError:
            raise
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as problem:
            ours = _from_body(problem)
            if ours is not None:
                raise ours from None
            raise Unreachable(str(self.base), _why(problem)) from problem
        except aiohttp.ClientError as problem:
            raise NotUnderstood(str(self.base), _why(problem)) from problem

    async def read(self, answer: aiohttp.ClientResponse, model: type[M]) -> M:
        """The JSON document of an answer.

        Raises:
            NotUnderstood
        """
        try:
            return model.model_validate_json(await answer.read())
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise NotUnderstood(
                str(answer.url), f"{where}: {first['msg']}" if where else first["msg"]
            ) from problem


def _base(url: str) -> URL:
    try:
        base = URL(url)
    except ValueError:
        base = URL()
    if base.scheme not in {"http", "https"} or not base.host:
        raise BadArgument(f"{url!r} is not a server's URL such as http://127.0.0.1:5000")
    return base


async def _refusal(answer: aiohttp.ClientResponse) -> FerrymanError:
    """A problem document, a reference body with ``message``, or a page of something else."""
    text = await answer.text(errors="replace")
    told: dict[str, Any] = {}
    if "json" in answer.content_type:
        try:
            document = await answer.json(content_type=None)
        except ValueError:
            document = None
        if isinstance(document, dict):
            told = document
    message = told.get("detail") or told.get("message")
    if not message:
        lines = [] if "html" in answer.content_type else text.strip().splitlines()
        message = f"{answer.status} {answer.reason or ''}".strip()
        message += "".join(f": {line[:200]}" for line in lines[:1])
        if answer.status not in _OF_PROXIES:
            return NotUnderstood(str(answer.url.origin()), message)
    if told.get("code") in _NO_ROUTE:  # an agent, or a server of another version
        return NotUnderstood(str(answer.url.origin()), str(message))
    if answer.status == 401:
        given = "Authorization" in answer.request_info.headers
        wrong = "the token was not accepted" if given else "no token was given"
        message = wrong if told.get("code") == "not_allowed" else f"{wrong}: {message}"
    return KINDS.get(answer.status, Refused)(
        answer.status,
        str(told.get("code") or ""),
        str(message),
        part=told.get("part"),
        request_id=told.get("request_id") or answer.headers.get("X-Request-ID"),
        retry_after=_seconds(answer.headers.get("Retry-After")),
    )


def _from_body(problem: BaseException) -> FerrymanError | None:
    """An error that making the body raised: aiohttp wraps it as trouble with the connection."""
    cause = problem.__cause__
    while cause is not None and not isinstance(cause, FerrymanError):
        cause = cause.__cause__
    return cause


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None  # a date: too rare to be worth it


def _why(problem: BaseException) -> str:
    """The network's words, without the library's around them."""
    if isinstance(problem, aiohttp.ClientConnectorError):
        error = problem.os_error
        if isinstance(error, ssl.SSLError):
            return _why_no_tls(error)
        if error.errno is not None and error.errno > 0:
            # asyncio says "Connect call failed" in its place; only Windows knows its own numbers.
            return os.strerror(error.errno) if os.name == "posix" else str(error)
        return error.strerror or str(error)
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not to be trusted: {problem.certificate_error}"
    if isinstance(problem, TimeoutError | asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(problem, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    if isinstance(problem, aiohttp.ClientPayloadError):
        return "the connection broke off in the middle of the answer"
    return str(problem) or type(problem).__name__


def _why_no_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be verified: {error.verify_message}"
    return f"it does not speak TLS there ({error.reason or error}): http:// in place of https://?"
