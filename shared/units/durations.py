"""Durations as people write them: ``90s``, ``1h30m``, ``10d``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from ferryman.units import say_duration as say_duration

MAX_LENGTH: Final = 32
"""Characters of a number with units; a longer text is refused before it is parsed."""
LONGEST_S: Final = 100 * 365 * 86_400.0
"""A hundred years: a time that far ahead can still be stored in microseconds."""
_UNITS: Final = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_DURATION: Final = re.compile("".join(rf"(?:({_NUMBER}){unit} ?)?" for unit in _UNITS))
_PLAIN: Final = re.compile(_NUMBER)


def parse_duration(text: str) -> float:
    """Seconds. Units from ``w`` to ``ms``, the largest first, each at most once.

    Raises:
        ValueError: not a duration, negative, or longer than :data:`LONGEST_S`.
    """
    text = strip_bounded(text, "90s, 1h30m or 10d")
    if text == "0":
        return 0.0
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        if text.startswith("-") and _DURATION.fullmatch(text[1:]):
            raise ValueError(f"{text!r} is negative; write a duration such as 90s, 1h30m or 10d")
        raise ValueError(f"{text!r} is not a duration such as 90s, 1h30m or 10d")
    numbers = zip(match.groups(), _UNITS.values(), strict=True)
    return _bounded(math.fsum(float(number) * unit for number, unit in numbers if number), text)


def strip_bounded(text: str, such_as: str) -> str:
    """``text`` without the blanks around it.

    Raises:
        ValueError: it is longer than :data:`MAX_LENGTH`.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(
            f"{text[:MAX_LENGTH] + '…'!r} is longer than {MAX_LENGTH} characters; "
            f"write a value such as {such_as}"
        )
    return text.strip()


def _bounded(seconds: float, text: object) -> float:
    if not seconds <= LONGEST_S:  # nan, too
        raise ValueError(f"{text!r} is longer than a hundred years")
    return seconds


def _duration(value: Any) -> Any:
    if value is True or value is False:  # which would count as 1 and 0
        raise ValueError(f"{str(value).lower()} is not a duration such as 90s, 1h30m or 10d")
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        plain = len(value) <= MAX_LENGTH and _PLAIN.fullmatch(value)
        value = float(value) if plain else parse_duration(value)
    return _bounded(value, value) if isinstance(value, int | float) else value


Duration = Annotated[float, BeforeValidator(_duration)]
"""A settings field in seconds; reads ``1h30m`` or a number of seconds."""
