"""What the parameters of routes mean, and which values they take: for ``/openapi.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MAX_WAIT_S: Final = 120.0
MAX_ID: Final = 2**63 - 1
"""Of jobs and everything else that the database numbers."""


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a path or query, or a header of a request.

    Attributes:
        text: what it means.
        schema: JSON schema of its value.
        example: None: it has none, and stays empty where a page asks for it.
    """

    text: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    example: Any = None


def whole(text: str, least: int = 0, most: int = MAX_ID, default: int | None = None) -> Param:
    """A whole number."""
    return Param(text, {"type": "integer", "minimum": least, "maximum": most} | _default(default))


def seconds(text: str) -> Param:
    """How long to wait; :func:`server.http.params.seconds_param` reads it."""
    more = f"; more than {MAX_WAIT_S:.0f} counts as {MAX_WAIT_S:.0f}"
    return Param(text + more, {"type": "number", "minimum": 0, "default": 0})


def choice(text: str, values: Iterable[str], default: str | None = None) -> Param:
    """One of a few words."""
    return Param(text, {"type": "string", "enum": [str(one) for one in values]} | _default(default))


def flag(text: str) -> Param:
    """Yes or no; :func:`server.http.params.flag_param` reads it."""
    return choice(text, ("1", "true", "0", "false"))


def word(text: str, most: int, pattern: str | None = None, example: str | None = None) -> Param:
    """Text of at most so many characters."""
    schema: dict[str, Any] = {"type": "string", "maxLength": most}
    return Param(text, schema | ({} if pattern is None else {"pattern": pattern}), example)


def _default(value: Any) -> dict[str, Any]:
    return {} if value is None else {"default": value}
