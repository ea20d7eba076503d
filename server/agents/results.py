"""Several results in one answer: a line that says what follows, then one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Final

import aiohttp

from server.agents import answers
from server.ports import Fetched, ScratchFile
from shared.clock import Clock
from shared.files.opened import to_end
from shared.wire import (
    PayloadDoc,
    ResultHead,
    ResultHeads,
)

_HEAD_BYTES: Final = 256 << 10
_MAX_BYTES: Final = 16 << 20
"""Of all results; more are never asked for at once."""


async def store(
    answer: aiohttp.ClientResponse, payloads: Sequence[PayloadDoc], to: ScratchFile, clock: Clock
) -> list[tuple[int, Fetched] | None]:
    """Write what came to the file.

    Returns:
        For each payload where its result begins, and what it is; None: it has not come, or not as
        it was announced.

    Raises:
        ValueError: it is not an agent's answer.
        OSError, TimeoutError
    """
    floor, body = answers.RateFloor(clock), bytearray()
    while chunk := await answer.content.readany():
        floor.add(len(chunk))
        body += chunk
        if len(body) > _HEAD_BYTES + _MAX_BYTES:
            raise ValueError("more results than were asked for")
    head, line, rest = bytes(body).partition(b"\n")
    heads = ResultHeads.model_validate_json(head).results
    if not line or [one.id for one in heads] != [one.id for one in payloads]:
        raise ValueError("other results than were asked for")
    if sum(one.size for one in heads) != len(rest):
        raise ValueError("results of another length than it says")
    return await to_end(partial(_write, to, rest, heads, payloads))


def _write(
    to: ScratchFile, content: bytes, heads: Sequence[ResultHead], payloads: Sequence[PayloadDoc]
) -> list[tuple[int, Fetched] | None]:
    """Blocking."""
    to.reserve(len(content))
    found: list[tuple[int, Fetched] | None] = []
    at, view = 0, memoryview(content)
    for head, payload in zip(heads, payloads, strict=True):
        digest, announced = hashlib.sha256(view[at : at + head.size]).hexdigest(), payload.result
        whole = announced is not None and (announced.size, announced.sha256) == (head.size, digest)
        found.append((at, Fetched(head.size, digest)) if whole and head.size else None)
        at += head.size
    to.path.write_bytes(content)
    return found
