"""What the picture of a soak shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.soak.samples import Sample, Sizes
from tests.support.plot import Panel, Points


def by_life(samples: Sequence[Sample], value: Callable[[Sample], float]) -> dict[str, list[Points]]:
    """A line for each program, broken where a life ended."""
    found: dict[str, dict[str, Points]] = {}
    for one in samples:
        found.setdefault(one.program, {}).setdefault(one.life, []).append((one.at, value(one)))
    return {program: list(lives.values()) for program, lives in found.items()}


def panels(samples: Sequence[Sample], sizes: Sequence[Sizes]) -> list[Panel]:
    mib = 1 << 20
    stored = {
        "database": [[(one.at, one.database / mib) for one in sizes]],
        "server's files": [[(one.at, one.server / mib) for one in sizes]],
        "agents' files": [[(one.at, one.agents / mib) for one in sizes]],
    }
    return [
        Panel("memory (RSS), MiB", by_life(samples, lambda one: one.rss / mib)),
        Panel("open descriptors", by_life(samples, lambda one: one.descriptors)),
        Panel("threads", by_life(samples, lambda one: one.threads)),
        Panel("on disk, MiB", stored),
    ]


def ticks(seconds: float) -> list[tuple[float, str]]:
    """Six steps, in minutes where it was long."""
    steps = [seconds * step / 6 for step in range(7)]
    return [(at, f"{at / 60:.0f} min" if seconds >= 600 else f"{at:.0f} s") for at in steps]
