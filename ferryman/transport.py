"""Requests to a server and their answers; retried while the server is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from ferryman.answer_errors import UNAVAILABLE, describe, error_of_body, refusal_of
from ferryman.clock import Clock
from ferryman.connection import Connection
from ferryman.errors import (
    FerrymanError,
    NotUnderstood,
    TryLater,
    Unreachable,
)

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
