"""One table of medians and ratios."""

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
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


async def measured(call: Callable[[], Awaitable[object]]) -> list[float]:
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begin)
    return times


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


median = statistics.median
