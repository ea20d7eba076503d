"""What an answer over HTTP means: a document of the agent, its refusal, or nothing.

What does not come from an agent counts as no answer: a page of a proxy, a redirect, half of a
document.
"""

from __future__ import annotations

import base64
import hashlib
import json
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import BinaryIO, Final, TypeVar

import aiohttp

from server.domain.agents import AgentError, NoSuchPayload, RefusedByAgent, Unreachable
from server.storage.scratch import ScratchFile
from shared.clock import SECOND, Clock, Micros
from shared.files.durable import remove_quietly
from shared.files.opened import opened, to_end
from shared.wire import ResultInfo, Wire

Document = TypeVar("Document", bound=Wire)

OK: Final = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT})
MOST_BYTES: Final = 64 << 20
"""The longest answers are lists of all that an agent holds, and job-orchestrator's payloads with
their files in them."""
MAX_RESULT: Final = 1 << 20
"""Bytes of a result that comes with the report of its payload."""
_DOCUMENT_BYTES: Final = 1 << 20
_REFUSAL_BYTES: Final = 64 << 10
_CHUNK: Final = 1 << 20
_FLOOR_BYTES: Final = 256 << 10
"""Of a result in so many seconds; one that comes more slowly is given up."""
_FLOOR_S: Final = 60.0
_LONGEST_WAIT_S: Final = 3_600.0
_RETRY: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,  # the operator is changing the token: the bundle is not at fault
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.CONFLICT,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)


async def read(answer: aiohttp.ClientResponse, most: int = MOST_BYTES) -> bytes:
    """The whole body. Raises ValueError: it is longer than ``most`` bytes."""
    body = bytearray()
    while chunk := await answer.content.readany():
        body += chunk
        if len(body) > most:
            raise ValueError(f"an answer of more than {most} bytes")
    return bytes(body)


async def document(answer: aiohttp.ClientResponse, model: type[Document]) -> Document:
    """The body as a document. Raises ValueError: it is not a document of the model."""
    try:
        return model.model_validate_json(await read(answer, _DOCUMENT_BYTES))
    except ValueError as problem:
        raise ValueError(f"{_what(answer)} that is not an agent's") from problem


async def refusal(answer: aiohttp.ClientResponse) -> AgentError:
    """What an answer that is no success means. Raises ValueError: it is not an agent's: it has none
    of its codes.
    """
    try:
        body = json.loads(await read(answer, _REFUSAL_BYTES))
    except ValueError:
        body = None
    code = body.get("code") if isinstance(body, dict) else None
    if not isinstance(code, str) or answer.status < HTTPStatus.BAD_REQUEST:
        raise ValueError(f"{_what(answer)} that is not an agent's")
    message = str(body.get("message") or code)[:500]
    if answer.status == HTTPStatus.NOT_FOUND and code == "payload_not_found":
        return NoSuchPayload(message)
    return refused(answer.status, code, message, retry_after(answer))


def refused(status: int, code: str, message: str, wait_s: float | None) -> RefusedByAgent:
    """An agent's no.

    Args:
        status: of the answer.
        wait_s: seconds until it may be asked again, where it said so; an hour is the most.
    """
    wait_s = None if wait_s is None else max(0.0, min(_LONGEST_WAIT_S, wait_s))
    if status == HTTPStatus.INSUFFICIENT_STORAGE and wait_s is None:
        wait_s = 30.0
    final = status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _RETRY and wait_s is None
    return RefusedByAgent(code, message, final=final, retry_after_s=wait_s)


def retry_after(answer: aiohttp.ClientResponse) -> float | None:
    """Seconds, where the answer says so; at most an hour."""
    text = answer.headers.get("Retry-After", "")
    return min(float(text[:9]), _LONGEST_WAIT_S) if text.isascii() and text.isdigit() else None


def clock_ahead_s(answer: aiohttp.ClientResponse, asked_at: Micros, now: Micros) -> float | None:
    """How far the clock of who answered is ahead of ours at least, in seconds; negative: behind.
    None: it does not say.
    """
    try:
        date = parsedate_to_datetime(answer.headers.get("Date", ""))
        said_at = round(date.timestamp() * SECOND)
    except (ValueError, OverflowError):
        return None
    # It was said between the two, and cut to a whole second.
    ahead, behind = said_at - now, asked_at - said_at - SECOND
    return (ahead if ahead > 0 else -max(0, behind)) / SECOND


def _what(answer: aiohttp.ClientResponse) -> str:
    kind = answer.headers.get("Content-Type", "no content type").partition(";")[0][:60]
    return f"an answer ({answer.status}, {kind})"


async def store(
    answer: aiohttp.ClientResponse, to: ScratchFile, clock: Clock, most: int | None = None
) -> ResultInfo:
    """The body to a file, checked against ``Repr-Digest`` and ``Content-Length`` where given.
    Raises Unreachable, OSError, TimeoutError. ``most``: bytes that were announced; more are not
    taken.
    """
    digest, size = hashlib.sha256(), 0
    since, lately = clock.monotonic(), 0
    gone = partial(remove_quietly, to.path)
    some = bytearray()

    def write(file: BinaryIO) -> None:
        to.reserve(len(some))
        digest.update(some)
        file.write(some)
        file.flush()
        some.clear()

    async with opened(lambda: to.path.open("wb"), gone) as file:
        while chunk := await answer.content.readany():
            size += len(chunk)
            if most is not None and size > most:
                raise Unreachable(
                    f"the result is longer than the {most} bytes that were announced", sent=True
                )
            lately += len(chunk)
            if (passed := clock.monotonic() - since) >= _FLOOR_S:
                if lately < _FLOOR_BYTES * passed / _FLOOR_S:
                    raise TimeoutError("the body comes too slowly")
                since, lately = since + passed, 0
            some += chunk
            if len(some) >= _CHUNK:
                await to_end(partial(write, file))
        if some:
            await to_end(partial(write, file))
    announced = answer.headers.get("Repr-Digest", "")
    if announced.startswith("sha-256=:"):
        expected = base64.b64decode(announced.removeprefix("sha-256=:").rstrip(":"))
        if expected != digest.digest():
            raise Unreachable("the result arrived damaged: wrong digest", sent=True)
    return ResultInfo(size=size, sha256=digest.hexdigest())
