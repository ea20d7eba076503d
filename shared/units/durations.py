"""Durations in settings and JSON: ``90s``, ``1h30m``, ``10d``, or seconds."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from ferryman.units import LONGEST_S as LONGEST_S
from ferryman.units import MAX_LENGTH, bounded
from ferryman.units import parse_duration as parse_duration
from ferryman.units import say_about as say_about
from ferryman.units import say_duration as say_duration
from ferryman.units import strip_bounded as strip_bounded

_PLAIN: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def _duration(value: Any) -> Any:
    if value is True or value is False:  # which would count as 1 and 0
        raise ValueError(f"{str(value).lower()} is not a duration such as 90s, 1h30m or 10d")
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        plain = len(value) <= MAX_LENGTH and _PLAIN.fullmatch(value)
        value = float(value) if plain else parse_duration(value)
    return bounded(value, value) if isinstance(value, int | float) else value


Duration = Annotated[float, BeforeValidator(_duration)]
"""A settings field in seconds; reads ``1h30m`` or a number of seconds."""
