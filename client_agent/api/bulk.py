"""``POST /payloads``: orders with their bundles, and acknowledgements.

Each payload is judged by itself. What is wrong with one concerns that one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong

from client_agent.api.requests import json_answer, reply_to, start_of
from client_agent.intake.orders import lengths, parse_bundles, parse_head
from client_agent.intake.submit import Intake, caught
from client_agent.payloads.attempt_keys import Caller
from client_agent.payloads.errors import Refused, StaleStart
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from shared.http.request_body import send_continue
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import Order, OrderAnswer, PayloadsAnswer

MAX_BODY: Final = 4 << 20
MAX_SMALL: Final = 256 << 10
"""Bytes of a bundle that is read into memory where it comes alone; others go to the disk."""
MAX_AT_ONCE: Final = 32
"""Bodies that are being read into memory: together they take 128 MiB at most."""
MAX_OF_ONE: Final = 16
"""Of these, from one address: a server that is slow leaves room for the others."""
MAX_S: Final = 60.0
"""For a whole body; one from a server is 1 MB at most."""
MAX_LINE: Final = 2 << 20
Refs: TypeAlias = Mapping[int, str | None]
"""Payload -> its key, where that was said."""


class Bulk:
    """The handler."""

    def __init__(self, payloads: Payloads, intake: Intake, folders: Folders) -> None:
        self._payloads, self._intake, self._folders = payloads, intake, folders
        self._reading = Counter[str]()
        """Address -> bodies."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/payloads", self.payloads)]

    async def payloads(self, request: web.Request) -> web.StreamResponse:
        """Attempts with their bundles, and payloads that need not be kept any more."""
        start, large = start_of(request), 0
        sent: Sequence[tuple[Order, int, memoryview]] = ()
        async with self._read(request):
            await send_continue(request)
            line = await _line(request)
            head = parse_head(line)
            if len(head.orders) == 1 and head.sizes[0] > MAX_SMALL:
                large = head.sizes[0]
            else:
                sent = parse_bundles(head, await _rest(request, len(line)))
        refs = {ref.id: ref.key for ref in head.acknowledge}
        who = Caller(start, head.server)
        if large:
            behind = (request.content_length or 0) - len(line)
            if behind != sum(lengths(head)):
                why = f"{behind} bytes follow the line, its sizes say {sum(lengths(head))}"
                raise Refused(400, "wrong_length", why)
            found = [await caught(self._intake.receive(request, head.orders[0], large, start))]
            refused = await self._forget(refs, who)
        else:
            # Not cancelled with the request: a payload that has a row must reach the runner.
            found, refused = await asyncio.shield(self._take(sent, refs, who))
        answers = [_answer(request, one) for one in found]
        response = json_answer(PayloadsAnswer(answers=answers, refused=dict(refused)))
        if not request.content.at_eof():
            response.force_close()  # the rest of a bundle that is not taken is not read
        return response

    @asynccontextmanager
    async def _read(self, request: web.Request) -> AsyncIterator[None]:
        """Around what is read into memory. Raises Refused: 408: it takes too long; 503: there are
        too many."""
        peer, reading = request.remote or "", self._reading
        if reading.total() >= MAX_AT_ONCE or reading[peer] >= MAX_OF_ONE:
            message = f"{reading.total()} such requests are being read: try again"
            raise Refused(503, "too_many_requests", message)
        reading[peer] += 1
        try:
            async with asyncio.timeout(MAX_S):
                yield
        except TimeoutError:
            message = f"the body was not there after {MAX_S:g} s"
            raise Refused(408, "body_too_slow", message) from None
        finally:
            reading -= Counter([peer])

    async def _take(
        self, sent: Sequence[tuple[Order, int, memoryview]], refs: Refs, caller: Caller
    ) -> tuple[list[Payload | Exception], Mapping[int, str]]:
        checked = await self._intake.store(sent)
        # Both in one commit.
        refused, found = await asyncio.gather(
            self._forget(refs, caller), self._intake.add(checked, caller.start)
        )
        return found, refused

    async def _forget(self, refs: Refs, caller: Caller) -> Mapping[int, str]:
        """The codes of those that are kept. What becomes of the orders does not depend on it."""
        if not refs:
            return {}
        try:
            refused, files = await self._payloads.acknowledge(refs, caller)
        except StaleStart as problem:
            return dict.fromkeys(refs, problem.code)
        except DatabaseUnavailable:
            return dict.fromkeys(refs, "database_unavailable")
        if files:
            await self._folders.remove_results(files)
        return refused


async def _line(request: web.Request) -> bytes:
    try:
        return await request.content.readline(max_line_length=MAX_LINE)
    except LineTooLong:
        why = f"the line is longer than {MAX_LINE} bytes"
        raise Refused(413, "too_large", why) from None


async def _rest(request: web.Request, read: int) -> bytes:
    """What is behind the line, which is small."""
    body, most = bytearray(), MAX_BODY - read
    too_large = Refused(413, "too_large", f"the body is longer than {MAX_BODY} bytes")
    if (request.content_length or 0) > MAX_BODY:
        raise too_large
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > most:
            raise too_large
    return bytes(body)


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
