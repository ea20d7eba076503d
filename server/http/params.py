"""Parameters of paths and queries, checked."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from aiohttp import web

from server.domain.errors import BadField
from server.http.parameter_types import MAX_ID, MAX_WAIT_S
from server.http.problems import Refusal
from shared.http.numbers import whole_number
from shared.http.request_body import send_continue

MAX_MESSAGE: Final = 200
_MOST_VALUES: Final = 5_000
"""In a body of JSON."""
_MAX_LENGTH: Final = 32
"""Characters of a number of seconds."""


def job_id(request: web.Request) -> int:
    """The job that the path names.

    Raises:
        Refusal: no number, or none that a job can have.
    """
    text = request.match_info["id"]
    number = whole_number(text, most=MAX_ID)
    if number is None:
        shown = text if len(text) <= 20 else f"{text[:20]}…"
        raise Refusal(404, "job_not_found", f"{shown!r} is not the number of a job")
    return number


def seconds_param(request: web.Request, name: str) -> float:
    """A query parameter in seconds, at most MAX_WAIT_S; 0 if missing."""
    text = request.query.get(name, "0")
    try:
        value = float(text.removesuffix("s")) if len(text) <= _MAX_LENGTH else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf or "_" in text:  # also refuses nan
        raise BadField(name, f"invalid_{name}", f"{name} should be seconds, not {text[:32]!r}")
    return min(value, MAX_WAIT_S)


def message_param(request: web.Request, default: str) -> str:
    """An operator's word for people, on one line."""
    return message_of(request.query.get("message", ""), default)


def message_of(text: str, default: str) -> str:
    """As :func:`message_param`, of a form."""
    text = text.strip() or default
    if len(text) > MAX_MESSAGE or not text.isprintable():
        why = f"message should be at most {MAX_MESSAGE} characters on one line"
        raise BadField("message", "invalid_message", why)
    return text


async def json_body(request: web.Request, most: int) -> dict[str, Any]:
    """The body, which is to be a JSON object of ``most`` bytes at most.

    Raises:
        Refusal: it is larger, or no JSON object. Nothing of it is repeated: it may hold secrets.
    """
    await send_continue(request)
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > most:
            raise Refusal(413, "body_too_large", f"the body has more than {most} bytes")
    try:
        found = json.loads(body, object_pairs_hook=_once)
        # No half characters, and no numbers beyond all bounds: neither can be stored.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
        _count(found)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        why = (
            "the body should be a JSON object, with each key once, text in whole characters, "
            f"and at most {_MOST_VALUES} values"
        )
        raise Refusal(400, "invalid_json", why)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _count(found: Any) -> None:
    """Raises ValueError for more values than any route takes: to say what is wrong with each would
    take seconds."""
    seen, waiting = 0, [found]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            seen += len(one)
            if seen > _MOST_VALUES:
                raise ValueError("too many values")
            waiting.extend(one.values() if isinstance(one, dict) else one)


def int_param(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """A query parameter that is a whole number."""
    text = request.query.get(name, str(default))
    number = whole_number(text, least, most)
    if number is None:
        raise BadField(
            name, f"invalid_{name}", f"{name} should be {least} to {most}, not {text[:32]!r}"
        )
    return number


def flag_param(request: web.Request, name: str) -> bool:
    """A query parameter that is yes or no; no if missing."""
    text = request.query.get(name, "0")
    if text not in ("1", "true", "0", "false"):
        raise BadField(name, f"invalid_{name}", f"{name} should be 1 or 0, not {text[:32]!r}")
    return text in ("1", "true")
