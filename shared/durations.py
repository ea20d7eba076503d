"""Durations (``90s``, ``1h30m``, ``10d``) and sizes (``400MB``, ``2GiB``) as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import durationpy
from pydantic import BeforeValidator, ByteSize, TypeAdapter

_SIZE: TypeAdapter[ByteSize] = TypeAdapter(ByteSize)


def parse_duration(text: str) -> float:
    """Seconds.

    Raises:
        ValueError: not a duration, or negative.
    """
    try:
        seconds = durationpy.from_str(text.strip()).total_seconds()
    except (durationpy.DurationError, ValueError) as problem:
        raise ValueError(f"{text!r} is not a duration such as 90s, 1h30m or 10d") from problem
    if seconds < 0:
        raise ValueError(f"{text!r} is negative")
    return float(seconds)


def parse_size(text: str) -> int:
    """Bytes.

    Raises:
        ValueError: not a size.
    """
    try:
        return int(_SIZE.validate_python(text.strip()))
    except ValueError as problem:
        raise ValueError(f"{text!r} is not a size such as 400MB or 2GiB") from problem


def say_duration(seconds: float) -> str:
    """For people: ``1h 30m``, ``48s``, ``0.3s``."""
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    left, parts = round(seconds), []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def say_size(count: float) -> str:
    """For people: ``512 B``, ``1.5 KiB``, ``2.0 GiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def _duration(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return parse_duration(value) if isinstance(value, str) and not _number(value) else value


def _size(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


Duration = Annotated[float, BeforeValidator(_duration)]
"""A settings field in seconds; reads ``1h30m`` or a number of seconds."""

Size = Annotated[int, BeforeValidator(_size)]
"""A settings field in bytes; reads ``2GiB`` or a number of bytes."""
