"""The result of ``ferryman agent check``: how it is printed, and stored for ``GET /health``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from client_agent.sandbox.base import SelfTestReport
from shared.clock import Micros, iso
from shared.files import durable

_FILE: Final = "check.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One limit."""

    limit: str
    enforcement: str
    """"hard", "soft" or "none", as the agent reports it; "opened": a grant of the operator."""
    passed: bool
    """Whether the limit worked as reported."""
    seen: str
    """What happened to the test, for people."""


@dataclass(frozen=True, slots=True)
class Table:
    """The result of a check."""

    report: SelfTestReport | None
    """Of the self-test; None: it failed."""
    rows: tuple[Row, ...] = ()
    advice: tuple[str, ...] = ()
    """How to make soft limits hard, or the sandbox work."""

    @property
    def passed(self) -> bool:
        return self.report is not None and all(row.passed for row in self.rows)


def show(table: Table) -> None:
    """Print the table and the advice on stdout."""
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console(highlight=False)
    if table.report is None:
        console.print("The sandbox cannot be used.", style="bold red")
    else:
        report = table.report
        console.print(f"{report.backend} {report.version}".strip())
        grid = Grid("limit", "enforced", "holds", "seen")
        for row in table.rows:
            holds = "[green]yes[/]" if row.passed else "[bold red]no[/]"
            grid.add_row(row.limit, row.enforcement, holds, row.seen)
        console.print(grid)
    for line in table.advice:
        console.print(f"- {line}", markup=False)


def store(home: Path, table: Table, at: Micros, version: str) -> None:
    """Store the result in the agent's folder, in place of the previous one. Raises OSError."""
    document = {
        "at": iso(at),
        "version": version,
        "passed": table.passed,
        "rows": [asdict(row) for row in table.rows],
    }
    staged = home / f".{_FILE}"
    staged.write_text(json.dumps(document))
    durable.replace(staged, home / _FILE)


def stored(home: Path) -> dict[str, Any] | None:
    """The stored result; None: there is none, or it cannot be read."""
    try:
        document = json.loads((home / _FILE).read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
