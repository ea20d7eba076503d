"""Routes for many payloads at once: orders, results, acknowledgements.

Each payload is judged as its own route would judge it. What is wrong with one concerns that one.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from aiohttp import hdrs, web
from pydantic import ValidationError

from client_agent.api.problems import reply_to
from client_agent.intake.orders import parse_orders
from client_agent.intake.submit import Intake
from client_agent.payloads.errors import NoSuchPayload, Refused
from client_agent.payloads.leases import Caller
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from shared.bulk_wire import (
    Acknowledged,
    OrderAnswer,
    OrderAnswers,
    PayloadRef,
    PayloadRefs,
    ResultHead,
    ResultHeads,
)
from shared.http.numbers import whole_number
from shared.http.request_body import send_continue
from shared.wire import ResultInfo, Wire

MAX_BODY: Final = 4 << 20
MAX_PAYLOADS: Final = 500
"""In one request."""
MAX_BYTES: Final = 8 << 20
"""Of the results in one answer, which are read into memory. Those beyond it are not in it."""
Model = TypeVar("Model", bound=Wire)


class Bulk:
    """The handlers."""

    def __init__(self, payloads: Payloads, intake: Intake, folders: Folders) -> None:
        self._payloads, self._intake, self._folders = payloads, intake, folders

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/orders", self.orders),
            web.post("/results", self.results),
            web.post("/payloads/acknowledge", self.acknowledge),
        ]

    async def orders(self, request: web.Request) -> web.StreamResponse:
        """Attempts whose bundle is here already."""
        found = await self._intake.order(parse_orders(await _body(request)))
        answers = OrderAnswers(answers=[_answer(request, one) for one in found])
        return _json(answers)

    async def results(self, request: web.Request) -> web.StreamResponse:
        """A line that says what follows, then the ZIPs one after the other."""
        wanted = await _refs(request)
        found = await self._payloads.find_all([one.id for one in wanted])
        left, chosen = MAX_BYTES, dict[int, ResultInfo]()
        for ref in wanted:
            payload = found.get(ref.id)
            result = payload.outcome.result if payload and payload.outcome else None
            if payload is None or result is None or ref.key not in (None, payload.key):
                continue
            if result.size <= left:
                left -= result.size
                chosen[ref.id] = result
        sizes = [(number, result.size) for number, result in chosen.items()]
        contents = await asyncio.to_thread(self._folders.read_results, sizes)
        heads = {
            number: ResultHead(id=number, size=len(content), sha256=chosen[number].sha256)
            for number, content in contents.items()
        }
        head = ResultHeads(results=[heads.get(ref.id, ResultHead(id=ref.id)) for ref in wanted])
        body = b"".join([head.model_dump_json().encode(), b"\n", *contents.values()])
        return web.Response(body=body, content_type="application/octet-stream")

    async def acknowledge(self, request: web.Request) -> web.StreamResponse:
        """Their server needs them no more."""
        lease, server = request.query.get("lease") or "0", request.query.get("server")
        number = whole_number(lease)
        if number is None:
            message = f"lease: {lease[:32]!r} is not a number from 0 up"
            raise Refused(400, "invalid_query", message)
        refs = await _refs(request)
        refused = await asyncio.gather(
            *(self._acknowledge(ref, Caller(number, server, ref.key)) for ref in refs)
        )
        answers = zip(refs, refused, strict=True)
        await self._folders.remove_results([ref.id for ref, code in answers if not code])
        codes = {ref.id: code for ref, code in zip(refs, refused, strict=True) if code}
        return _json(Acknowledged(refused=codes))

    async def _acknowledge(self, ref: PayloadRef, caller: Caller) -> str:
        """Code of why it was not; empty: it was, or is not known any more."""
        try:
            await self._payloads.acknowledge(ref.id, caller)
        except NoSuchPayload:
            return "payload_not_found"
        except Refused as problem:
            if problem.code == "stale_lease":
                raise  # it is all of them
            return problem.code
        return ""


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


async def _refs(request: web.Request) -> list[PayloadRef]:
    refs = _parsed(PayloadRefs, await _body(request)).payloads
    if len(refs) > MAX_PAYLOADS:
        message = f"payloads: {len(refs)} of them, at most {MAX_PAYLOADS} are taken at once"
        raise Refused(413, "too_large", message)
    return list({ref.id: ref for ref in refs}.values())


async def _body(request: web.Request) -> bytes:
    await send_continue(request)
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY:
            raise Refused(413, "too_large", f"the body is longer than {MAX_BODY} bytes")
    return bytes(body)


def _parsed(model: type[Model], body: bytes) -> Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise Refused(400, "invalid_body", f"{where}: {first['msg']}") from None


def _json(model: Wire) -> web.Response:
    return web.Response(text=model.model_dump_json(), content_type="application/json")
