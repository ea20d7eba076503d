"""``POST /payloads``: orders with their bundles, and acknowledgements.

Each payload is judged by itself. What is wrong with one concerns that one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from aiohttp import hdrs, web

from client_agent.api.requests import reply_to, start_of
from client_agent.intake.many import ManyIntake
from client_agent.intake.orders import parse_with_bundles
from client_agent.payloads.attempt_keys import Caller
from client_agent.payloads.errors import Refused, StaleStart
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from shared.http.request_body import send_continue
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import (
    Order,
    OrderAnswer,
    PayloadRef,
    PayloadsAnswer,
    Wire,
)

MAX_BODY: Final = 4 << 20
MAX_AT_ONCE: Final = 32
"""Bodies that are being read: together they take 128 MiB at most."""
MAX_OF_ONE: Final = 16
"""Of these, from one address: a server that is slow leaves room for the others."""
MAX_S: Final = 60.0
"""For a whole body; one from a server is 1 MB at most."""


class Bodies:
    """All that come in at the same time."""

    def __init__(self) -> None:
        self._reading = Counter[str]()
        """Address -> bodies."""

    async def read(self, request: web.Request) -> bytes:
        """The whole body.

        Raises:
            Refused: 413: it is too long; 408: it takes too long; 503: there are too many.
        """
        too_large = Refused(413, "too_large", f"the body is longer than {MAX_BODY} bytes")
        if (request.content_length or 0) > MAX_BODY:
            raise too_large
        peer, reading = request.remote or "", self._reading
        if reading.total() >= MAX_AT_ONCE or reading[peer] >= MAX_OF_ONE:
            message = f"{reading.total()} such requests are being read: try again"
            raise Refused(503, "too_many_requests", message)
        reading[peer] += 1
        try:
            async with asyncio.timeout(MAX_S):
                await send_continue(request)
                body = bytearray()
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BODY:
                        raise too_large
        except TimeoutError:
            message = f"the body was not there after {MAX_S:g} s"
            raise Refused(408, "body_too_slow", message) from None
        finally:
            reading -= Counter([peer])
        return bytes(body)


MAX_PAYLOADS: Final = 500
"""In one request."""
Refs: TypeAlias = Mapping[int, str | None]
"""Payload -> its key, where that was said."""
Model = TypeVar("Model", bound=Wire)


class Bulk:
    """The handlers."""

    def __init__(self, payloads: Payloads, intake: ManyIntake, folders: Folders) -> None:
        self._payloads, self._intake, self._folders = payloads, intake, folders
        self._bodies = Bodies()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/payloads", self.payloads),
        ]

    async def payloads(self, request: web.Request) -> web.StreamResponse:
        """Attempts with their bundles, and payloads that need not be kept any more."""
        head, sent = parse_with_bundles(await self._bodies.read(request))
        refs = _distinct(head.acknowledge)
        # Not cancelled with the request: a payload that has a row must reach the runner.
        found, refused = await asyncio.shield(
            self._take(sent, refs, Caller(start_of(request), head.server))
        )
        answers = [_answer(request, one) for one in found]
        return _json(PayloadsAnswer(answers=answers, refused=dict(refused)))

    async def _take(
        self, sent: Sequence[tuple[Order, memoryview | None]], refs: Refs, caller: Caller
    ) -> tuple[list[Payload | Exception], Mapping[int, str]]:
        checked = await self._intake.store(sent)
        # Both in one commit.
        refused, found = await asyncio.gather(
            self._try_to_forget(refs, caller), self._intake.add(checked, caller.start)
        )
        return found, refused

    async def _try_to_forget(self, refs: Refs, caller: Caller) -> Mapping[int, str]:
        """As :meth:`_forget`. What becomes of the orders does not depend on it."""
        try:
            return await self._forget(refs, caller)
        except StaleStart as problem:
            code = problem.code
        except DatabaseUnavailable:
            code = "database_unavailable"
        return dict.fromkeys(refs, code)

    async def _forget(self, refs: Refs, caller: Caller) -> dict[int, str]:
        """Returns the codes of those that are kept."""
        if not refs:
            return {}
        refused = await self._payloads.acknowledge(refs, caller)
        await self._folders.remove_results([one for one in refs if one not in refused])
        return refused


def _answer(request: web.Request, found: Payload | Exception) -> OrderAnswer:
    if isinstance(found, Payload):
        return OrderAnswer(payload=found.doc())
    status, body, headers = reply_to(request, found)
    wait = headers.get(hdrs.RETRY_AFTER)
    return OrderAnswer(
        status=status,
        code=body["code"],
        message=body["message"],
        retry_after_s=None if wait is None else float(wait),
    )


def _distinct(refs: Sequence[PayloadRef]) -> Refs:
    if len(refs) > MAX_PAYLOADS:
        message = f"payloads: {len(refs)} of them, at most {MAX_PAYLOADS} are taken at once"
        raise Refused(413, "too_large", message)
    return {ref.id: ref.key for ref in refs}


def _json(model: Wire) -> web.Response:
    return web.Response(text=model.model_dump_json(), content_type="application/json")
