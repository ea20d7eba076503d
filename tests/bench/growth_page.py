"""The table and the picture of growth in ``docs/performance.md``."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TypeAlias

from tests.support.dev_program import ROOT
from tests.support.plot import Panel, svg

PAGE: Final = ROOT / "docs/performance.md"
PICTURE: Final = ROOT / "docs/growth.svg"
BEGIN, END = "<!-- figures: make growth -->", "<!-- end of figures -->"
COLUMNS: Final = {
    "rate": "jobs/s",
    "server": "server, ms",
    "agent": "agent, ms",
    "chain": "chain, ms",
    "p50": "p50 alone, ms",
    "server MiB": "server, MiB",
    "agent MiB": "an agent, MiB",
}
NAMES: Final = {
    "queued": "waiting jobs of the service, all of a user who is at the quota",
    "queued-elsewhere": "waiting jobs of a service that no agent has, of 50 users",
    "delayed": "jobs of the service that wait for their time, of 50 users",
    "ended": "jobs of the service that have ended, of 50 users",
    "users": "users, who send the jobs in turn",
    "agents": "real agents, all on this machine",
}
PANELS: Final = {
    "CPU of the server a job, ms": ("server",),
    "CPU of the agents a job, ms": ("agent",),
    "p50 of one job alone, ms": ("p50",),
    "memory of the server, MiB": ("server MiB",),
}

Found: TypeAlias = dict[str, dict[int, dict[str, float]]]
"""Axis -> how many -> figures."""


def rows(name: str, figures: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Lines of the table."""
    lines = []
    for number, (count, row) in enumerate(figures.items()):
        cells = " | ".join(f"{row[key]:.{int('MiB' not in key)}f}" for key in COLUMNS)
        lines.append(f"| {'' if number else NAMES[name]} | {count:,} | {cells} |")
    return lines


def table(found: Found) -> str:
    head = ["beside", "how many", *COLUMNS.values()]
    lines = [machine(), "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, figures in found.items():
        lines += rows(name, figures)
    return "\n".join(lines)


def machine() -> str:
    """What it was measured on."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, {gib:.0f} GiB, Python "
        f"{platform.python_version()}."
    )


def picture(found: Found) -> str:
    """The figures over the count, whose scale is logarithmic."""
    most = max(count for figures in found.values() for count in figures)
    shown = [
        Panel(
            title,
            {
                name: [[(math.log10(count), row[key]) for count, row in figures.items()]]
                for name, figures in found.items()
            },
        )
        for title, (key,) in PANELS.items()
    ]
    ticks = [(at, f"{10**at:,}") for at in range(math.ceil(math.log10(most)) + 1)]
    title = "What a job costs beside many jobs, users and agents"
    return svg(title, ticks, shown, {})


def write(found: Found) -> None:
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table(found)}\n{END}{tail}")
    PICTURE.write_text(picture(found))
