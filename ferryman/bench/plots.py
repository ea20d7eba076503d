"""Line plots as SVG, whose colours and words the page around them has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, TypeAlias

Point: TypeAlias = tuple[float, float]

WIDTH: Final = 720
HEIGHT: Final = 260
_LEFT: Final = 64
_RIGHT: Final = 16
_TOP: Final = 12
_BOTTOM: Final = 36
_STEPS: Final = (1, 2, 5, 10)
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "1 5")
"""Lines differ by more than their colour."""
MOST_POINTS: Final = 400
"""Of a line; of more, some are left out."""


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Axis:
    """From its lowest value to its highest.

    Args:
        log: equal distances are equal ratios.
        say: writes a value.
    """

    low: float
    high: float
    log: bool = False
    say: Callable[[float], str] = lambda value: f"{value:g}"

    def share(self, value: float) -> float:
        """Where it lies, from 0 to 1."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.log(max(self.low, value))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            powers = [10.0**power for power in range(first, last + 1)]
            return [one for one in powers if self.low <= one * 1.001 and one <= self.high * 1.001]
        step = nice((self.high - self.low) / 5)
        count = int((self.high - self.low) / step + 1e-6)
        return [self.low + step * number for number in range(count + 1)]


def nice(step: float) -> float:
    """The next larger of 1, 2 or 5 times a power of ten."""
    if step <= 0 or not math.isfinite(step):
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next((one * power for one in _STEPS if one * power >= step * 0.999), 10 * power)


def linear(values: Iterable[float], say: Callable[[float], str] | None = None) -> Axis:
    """An axis from 0 to a bit above the highest value."""
    most = max(values, default=0.0)
    step = nice(most / 5)
    high = step * max(1, math.ceil(most / step - 1e-9)) if most > 0 else 1.0
    return Axis(0.0, high, say=say or (lambda value: f"{value:g}"))


def logarithmic(values: Iterable[float], say: Callable[[float], str]) -> Axis:
    """An axis of whole powers of ten around the values."""
    found = [one for one in values if one > 0] or [1.0]
    low = 10.0 ** math.floor(math.log10(min(found)))
    high = 10.0 ** math.ceil(math.log10(max(found)))
    return Axis(low, high if high > low else low * 10, log=True, say=say)


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """At most so many of them, with the first and the last."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


def plot(title: str, x: Axis, y: Axis, lines: Sequence[Line], x_name: str) -> str:
    """The drawing; its numbers belong into a table beside it."""
    inner_width, inner_height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def across(value: float) -> float:
        return _LEFT + x.share(value) * inner_width

    def down(value: float) -> float:
        return _TOP + (1 - y.share(value)) * inner_height

    names = ", ".join(line.name for line in lines)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title, quote=True)}: {escape(names, quote=True)}">'
    ]
    for tick in y.ticks():
        at = f"{down(tick):.1f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{at}" dy="0.32em" text-anchor="end">'
            f"{escape(y.say(tick))}</text>"
        )
    base = HEIGHT - _BOTTOM
    for tick in x.ticks():
        at = f"{across(tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{base}" y2="{base + 4}"/>')
        parts.append(
            f'<text x="{at}" y="{base + 16}" text-anchor="middle">{escape(x.say(tick))}</text>'
        )
    parts.append(
        f'<text x="{_LEFT + inner_width / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">'
        f"{escape(x_name)}</text>"
    )
    for number, line in enumerate(lines):
        drawn = " ".join(f"{across(a):.1f},{down(b):.1f}" for a, b in thinned(line.points))
        dash = _DASHES[number % len(_DASHES)]
        style = f' stroke-dasharray="{dash}"' if dash else ""
        if drawn:
            parts.append(f'<polyline class="l{number}"{style} points="{drawn}"/>')
    parts.append("</svg>")
    return "".join(parts) + _legend(lines)


def _legend(lines: Sequence[Line]) -> str:
    items = []
    for number, line in enumerate(lines):
        dash = _DASHES[number % len(_DASHES)]
        style = f' stroke-dasharray="{dash}"' if dash else ""
        items.append(
            f'<li><svg viewBox="0 0 36 8" aria-hidden="true"><polyline class="l{number}"{style} '
            f'points="1,4 35,4"/></svg>{escape(line.name)}</li>'
        )
    return f'<ul class="legend">{"".join(items)}</ul>'
