"""Times and sizes as people write and read them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

MAX_LENGTH: Final = 32
"""Characters of a number with units; a longer text is refused before it is parsed."""
LONGEST_S: Final = 100 * 365 * 86_400.0
"""A hundred years: a time that far ahead can still be stored in microseconds."""
_UNITS: Final = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_ENDS_WITH_IES: Final = re.compile("[^aeiou]y$")
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_DURATION: Final = re.compile("".join(rf"(?:({_NUMBER}){unit} ?)?" for unit in _UNITS))
LARGEST: Final = (1 << 63) - 1
"""What a database column and the kernel can hold."""
_POWERS: Final = {prefix: power for power, prefix in enumerate("kmgtpe", 1)}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(?:b|([kmgtpe])(i?)b?)?", re.IGNORECASE)


def say_duration(seconds: float) -> str:
    """For people: ``1h 30m``, ``48s``, ``0.3s``, ``20ms``."""
    if 0 < seconds < 0.1:
        return f"{max(1, round(seconds * 1000))}ms"
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    left, parts = round(seconds), []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def say_about(seconds: float) -> str:
    """An estimate for people, no more exact than it can be: ``7 min``, ``25 min``, ``3 h``,
    ``2 d``; at least a minute.
    """
    minutes = max(1, round(seconds / 60))
    if minutes < 58:
        return f"{minutes if minutes < 10 else 5 * round(minutes / 5)} min"
    hours = round(minutes / 60)
    return f"{hours} h" if hours < 48 else f"{round(hours / 24)} d"


def say_count(count: int, what: str) -> str:
    """For people: ``1 job``, ``2 jobs``, ``2 entries``."""
    if count != 1:
        what = f"{what[:-1]}ies" if _ENDS_WITH_IES.search(what) else f"{what}s"
    return f"{count} {what}"


def say_size(count: float) -> str:
    """For people: ``512 B``, ``1.5 KiB``, ``2.0 GiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


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
    return bounded(math.fsum(float(number) * unit for number, unit in numbers if number), text)


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


def bounded(seconds: float, text: object) -> float:
    """The seconds, unless they are more than :data:`LONGEST_S`.

    Raises:
        ValueError: with ``text`` as what was given.
    """
    if not seconds <= LONGEST_S:  # nan, too
        raise ValueError(f"{text!r} is longer than a hundred years")
    return seconds


def parse_size(text: str) -> int:
    """Bytes. ``KB`` is 1000 and ``KiB`` 1024, in any case, up to ``EiB``.

    Raises:
        ValueError: not a size, or more than :data:`LARGEST`.
    """
    text = strip_bounded(text, "400MB or 2GiB")
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 400MB or 2GiB")
    number, prefix, binary = match.groups()
    unit = (1024 if binary else 1000) ** _POWERS[prefix.lower()] if prefix else 1
    return bounded_size(int(Decimal(number) * unit), text)


def bounded_size(size: int, text: object) -> int:
    """The bytes, unless they are more than :data:`LARGEST`.

    Raises:
        ValueError: with ``text`` as what was given.
    """
    if size > LARGEST:
        raise ValueError(f"{text!r} is more than any disk or memory holds")
    return size
