"""What the soak found, in Markdown and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

from tests.soak.model import Model
from tests.soak.samples import Life, Sample, lives

MIB = 1 << 20
LONG_S = 240.0
"""Lives that are shorter say nothing about a leak."""


@dataclass
class Findings:
    """Everything that a report is made of."""

    seed: int
    seconds: float
    model: Model
    samples: list[Sample]
    errors: Counter[str]
    looks: int
    rows: dict[str, int]


def write(found: Findings, to: Path) -> None:
    """``to``.md and .json."""
    to.with_suffix(".md").write_text(markdown(found))
    summary = {
        "seed": found.seed,
        "seconds": found.seconds,
        "counts": found.model.counts,
        "wrong": found.model.wrong,
        "errors": found.errors,
        "rows": found.rows,
    }
    to.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")


def markdown(found: Findings) -> str:
    counts = found.model.counts
    uploads = sum(n for name, n in counts.items() if name.startswith("uploaded: "))
    lines = [
        f"{uploads} uploads in {found.seconds / 60:.0f} minutes, seed {found.seed}; "
        f"wrong: {len(found.model.wrong)}.",
        "",
        "| what | times |",
        "|---|---|",
        *(f"| {name} | {counts[name]} |" for name in sorted(counts)),
        f"| looks at all processes for two attempts of one job | {found.looks} |",
        "",
        *life_table(lives(found.samples)),
        "",
        *(f"- WRONG: {one}" for one in found.model.wrong),
    ]
    return "\n".join(lines) + "\n"


def life_table(all_lives: Sequence[Life]) -> list[str]:
    out = [
        "| program, a life | length | memory, first → last fifth | growth "
        "| descriptors (most) | threads |",
        "|---|---|---|---|---|---|",
    ]
    for life in all_lives:
        if life.seconds < LONG_S:
            continue
        growth = "" if isnan(life.rss_slope) else f"{life.rss_slope / MIB:+.1f} MiB/h"
        memory = f"{life.rss_first / MIB:.1f} → {life.rss_last / MIB:.1f} MiB"
        descriptors = f"{life.descriptors[0]} → {life.descriptors[1]} ({life.descriptors_most})"
        threads = f"{life.threads[0]} → {life.threads[1]}"
        name = f"{life.program}, from minute {life.begin / 60:.0f}"
        minutes = f"{life.seconds / 60:.0f} min"
        out.append(f"| {name} | {minutes} | {memory} | {growth} | {descriptors} | {threads} |")
    short = sum(life.seconds < LONG_S for life in all_lives)
    return [*out, f"| {short} shorter lives | | | | | |"]
