"""Rates, and sizes and times that are drawn at random, as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ferryman.units import parse_duration, parse_size, say_duration, say_size

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - the type

_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) */ *(s|m|h)")
_PER: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
MOST_A_SECOND: Final = 10_000.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity that is the same for all jobs, or drawn for each.

    Args:
        low, high: the bounds; between them its logarithm is uniform.
        mean: of an exponential distribution, which has no bounds; None: it has bounds.
    """

    low: float
    high: float
    mean: float | None = None

    def draw(self, rng: Random) -> float:
        if self.mean is not None:
            return rng.expovariate(1 / self.mean) if self.mean else 0.0
        if self.low == self.high:
            return self.low
        least = max(self.low, 1e-3)  # a logarithm needs more than nothing
        return min(self.high, math.exp(rng.uniform(math.log(least), math.log(self.high))))

    def expected(self) -> float:
        """The mean of what is drawn."""
        if self.mean is not None:
            return self.mean
        least = max(self.low, 1e-3)
        if self.low == self.high or least >= self.high:
            return self.high
        return (self.high - least) / math.log(self.high / least)

    def say(self, unit: Callable[[float], str]) -> str:
        if self.mean is not None:
            return f"exp:{unit(self.mean)}"
        if self.low == self.high:
            return unit(self.low)
        return f"{unit(self.low)}..{unit(self.high)}"


def sizes(text: str) -> Spread:
    """``1MiB``, or ``1KiB..10MiB``.

    Raises:
        ValueError
    """
    return _spread(text, parse_size, "1MiB or 1KiB..10MiB")


def times(text: str) -> Spread:
    """``2s``, ``1s..1m``, or ``exp:5s`` for an exponential distribution with that mean.

    Raises:
        ValueError
    """
    if text.startswith("exp:"):
        mean = parse_duration(text.removeprefix("exp:"))
        return Spread(0.0, math.inf, mean)
    return _spread(text, parse_duration, "2s, 1s..1m or exp:5s")


def _spread(text: str, parse: Callable[[str], float], such_as: str) -> Spread:
    low, dots, high = text.partition("..")
    least = parse(low)
    most = parse(high) if dots else least
    if most < least:
        raise ValueError(f"{text!r} ends below its beginning; write it such as {such_as}")
    return Spread(float(least), float(most))


def rate(text: str) -> float:
    """Jobs a second, of ``20/s``, ``90/m`` or ``500/h``.

    Raises:
        ValueError
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rate such as 20/s, 90/m or 500/h")
    found = float(match[1]) / _PER[match[2]]
    if not 0 < found <= MOST_A_SECOND:
        raise ValueError(f"{text!r} should be more than 0 and at most {MOST_A_SECOND:.0f}/s")
    return found


def say_rate(a_second: float) -> str:
    """For people: ``20/s``, ``1.5/s``, ``12/m``."""
    if a_second >= 1 or not a_second:
        return f"{a_second:.3g}/s" if a_second < 1000 else f"{a_second:.0f}/s"
    return f"{a_second * 60:.3g}/m" if a_second * 60 >= 1 else f"{a_second * 3600:.3g}/h"


def say_time(seconds: float) -> str:
    """For people, with three digits: ``4.2ms``, ``250ms``, ``1.24s``, ``1m 30s``."""
    if not seconds:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1000:.3g}ms" if seconds < 0.9995 else "1s"
    return f"{seconds:.3g}s" if seconds < 60 else say_duration(seconds)


def say_bytes(size: float) -> str:
    return say_size(size).replace(" ", "")
