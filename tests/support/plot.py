"""Lines in SVG: one panel below the other, over the same axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, PANEL, GAP = 1000, 110, 120, 130, 34
COLORS = ("#0b5cad", "#b3401a", "#2f7d32", "#6a3d9a", "#8a6d00", "#c2187a")
Points = list[tuple[float, float]]


@dataclass
class Panel:
    """Lines on one scale.

    Attributes:
        lines: name -> its parts; between two parts the line is broken.
    """

    title: str
    lines: dict[str, list[Points]]


def svg(
    title: str,
    ticks: Sequence[tuple[float, str]],
    shown: Sequence[Panel],
    marks: Mapping[str, Sequence[float]],
) -> str:
    """The picture.

    Args:
        ticks: where on the axis, and what is written there. The last is its end, 0 its beginning.
        marks: name -> moments, shown in a row of their own.
    """
    inner, most = WIDTH - LEFT - RIGHT, ticks[-1][0]

    def x(at: float) -> float:
        return LEFT + inner * at / most

    height = 40 + len(shown) * (PANEL + GAP) + 16 * len(marks) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    top = 40.0
    for panel in shown:
        out += _panel(panel, top, x)
        top += PANEL + GAP
    for name, moments in marks.items():
        out.append(f'<text x="{LEFT - 6}" y="{top + 8}" text-anchor="end">{escape(name)}</text>')
        path = "".join(f"M{x(at):.1f} {top}v9" for at in moments)
        out.append(f'<path d="{path}" stroke="#444" fill="none"/>')
        top += 16
    for at, label in ticks:
        out.append(f'<text x="{x(at):.1f}" y="{top + 14}" text-anchor="middle">{label}</text>')
    return "\n".join([*out, "</svg>", ""])


def _panel(panel: Panel, top: float, x: Callable[[float], float]) -> list[str]:
    values = [y for parts in panel.lines.values() for part in parts for _, y in part]
    most = _round_up(max(values, default=1))

    def y(value: float) -> float:
        return top + PANEL * (1 - value / most)

    out = [f'<text x="{LEFT}" y="{top - 5:.0f}" font-weight="bold">{escape(panel.title)}</text>']
    for step in range(3):
        value = most * step / 2
        line = y(value)
        out.append(f'<path d="M{LEFT} {line:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{line + 4:.1f}" text-anchor="end">{value:g}</text>')
    for number, (name, parts) in enumerate(panel.lines.items()):
        color = COLORS[number % len(COLORS)]
        path = "".join(
            "M" + "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in part) for part in parts
        )
        out.append(f'<path d="{path}" stroke="{color}" fill="none" stroke-width="1.2"/>')
        at_y = top + 12 + 15 * number
        out.append(
            f'<text x="{WIDTH - RIGHT + 8}" y="{at_y:.0f}" fill="{color}">{escape(name)}</text>'
        )
    return out


def _round_up(value: float) -> float:
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000):
        if value <= step:
            return step
    return value
