"""One table of medians and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison of one run."""

    what: str
    ours: str
    against: str
    ratio: float | None = None
    target: str = ""
    met: bool | None = None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        met = {True: "met", False: "NOT met", None: ""}[self.met]
        return f"| {self.what} | {self.ours} | {self.against} | {ratio} | {self.target} | {met} |"


def show(rows: Sequence[Row]) -> None:
    print("\n| what | ours | against | ratio | target | |\n|---|---|---|---|---|---|")
    for row in rows:
        print(row)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


median = statistics.median
