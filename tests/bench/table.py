"""One table of medians and ratios."""

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

HEAD = "| what | ours | against | ratio | target | |\n|---|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    ours: str
    against: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        met = {True: "met", False: "NOT met", None: ""}[self.met]
        return f"| {self.what} | {self.ours} | {self.against} | {ratio} | {self.target} | {met} |"


def compared(
    what: str, took: float, against: str, base: float, *, times: float = 0, ms: float = 0
) -> Row:
    """Seconds beside others; at most so many times as long is the target, or at most so long."""
    target = f"≤ {times:g} ×" if times else f"≤ {ms:g} ms"
    met = took <= (times * base if times else ms / 1e3)
    ours, theirs = f"{took * 1e3:.2f} ms", f"{against} {base * 1e3:.2f} ms"
    return Row(what, ours, theirs, took / base, target, met)


async def measured(call: Callable[[], Awaitable[object]], count: int = 20) -> list[float]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begin)
    return times


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


median = statistics.median
