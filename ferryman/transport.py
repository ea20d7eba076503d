"""Requests to a server and their answers; retried while the server is away."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic import BaseModel, ValidationError
from yarl import URL

from ferryman.answer_errors import UNAVAILABLE, describe, error_of_body, refusal_of
from ferryman.clock import Clock
from ferryman.errors import (
    BadArgument,
    FerrymanError,
    NotUnderstood,
    TryLater,
    Unreachable,
)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

FIRST_RETRY_PAUSE_S: Final = 0.1
MAX_RETRY_PAUSE_S: Final = 2.0
_RETRIED_CODES: Final = frozenset({"too_many_uploads"})
"""Codes of refusals that pass by themselves: other uploads of the same user are in flight."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Transport:
    """HTTP requests to one server.

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
    ) -> tuple[int, M]:
        """POST what may be repeated; HTTP status (below 400) and JSON document."""

        async def once() -> tuple[int, M]:
            async with self.answer("POST", path, query=query, json=json) as answer:
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
                if now + pause - away_since > self.patience:
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
        if self._session is None:
            raise RuntimeError("not open: use `async with Client(…) as client`")
        try:
            async with self._session.request(
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
