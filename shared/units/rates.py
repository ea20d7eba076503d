"""Rates as people write them: ``50/s``, ``300/m``, ``1000/h``; ``off`` for none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from shared.units.durations import strip_bounded

_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0}
_RATE: Final = re.compile(r"([0-9]{1,9}) */ *([smh])")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in a period, and as many at once.

    Attributes:
        number: 0: any number.
        unit: "s", "m" or "h".
    """

    number: int = 0
    unit: str = "s"

    @property
    def per_s(self) -> float:
        """On average."""
        return self.number / _SECONDS[self.unit]

    def __str__(self) -> str:
        return f"{self.number}/{self.unit}" if self.number else "off"


UNLIMITED: Final = Rate()


def parse_rate(text: str) -> Rate:
    """The rate. Raises ValueError."""
    text = strip_bounded(text, "50/s, 300/m or off")
    if text.lower() == "off":
        return UNLIMITED
    match = _RATE.fullmatch(text.lower())
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is not a rate such as 50/s, 300/m or 1000/h, and not off")
    return Rate(int(match[1]), match[2])


def _rate(value: Any) -> Any:
    return parse_rate(value) if isinstance(value, str) else value


RateLimit = Annotated[Rate, BeforeValidator(_rate)]
"""A settings field; reads ``50/s``."""
