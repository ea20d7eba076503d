"""The list of all that an agent holds, parsed a little at a time."""

from __future__ import annotations

import json
import re
from typing import Final

from shared.clock import yield_to_loop
from shared.wire import PayloadDoc, PayloadList

MOST: Final = 100_000
_TURN: Final = 100
"""Payloads, until everybody else on the event loop has a turn."""
_WINDOWS: Final = (1 << 14, 1 << 20)
"""Characters within which a payload ends: usually, and at most."""
_S: Final = r"\s{0,64}"
_HEAD: Final = re.compile(
    _S.join(("", r"\{", '"seq"', ":", "([0-9]{1,18})", ",", '"payloads"', ":", r"\[", ""))
)
_NEXT: Final = re.compile(f"{_S},{_S}")
_END: Final = re.compile(rf"{_S}\]{_S}\}}{_S}")
_DECODER: Final = json.JSONDecoder()


async def parse(body: bytes) -> PayloadList:
    """The list, as :class:`shared.wire.PayloadList` reads it in one piece.

    Raises:
        ValueError: it is not such a list, or has more than :data:`MOST` payloads.
    """
    text = body.decode()
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("a list of payloads with a malformed beginning")
    payloads: list[PayloadDoc] = []
    at = head.end()
    while not (end := _END.match(text, at)):
        if payloads:
            comma = _NEXT.match(text, at)
            if comma is None:
                raise ValueError("a list of payloads with a malformed entry")
            at = comma.end()
        payload, length = _payload(text, at)
        payloads.append(payload)
        at += length
        if len(payloads) > MOST:
            raise ValueError(f"a list of more than {MOST} payloads")
        if len(payloads) % _TURN == 0:
            await yield_to_loop()
    if end.end() != len(text):
        raise ValueError("a list of payloads with something after its end")
    return PayloadList(seq=int(head[1]), payloads=payloads)


def _payload(text: str, at: int) -> tuple[PayloadDoc, int]:
    """The payload that begins there, and its length."""
    for window in _WINDOWS:
        try:
            value, length = _DECODER.raw_decode(text[at : at + window])
        except (ValueError, RecursionError):
            continue
        return PayloadDoc.model_validate(value), length
    raise ValueError("a list of payloads with a malformed entry")
