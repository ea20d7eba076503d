"""The result of ``ferryman agent check``, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as Grid

from client_agent.sandbox.base import SelfTestReport


@dataclass(frozen=True, slots=True)
class Row:
    """One limit."""

    limit: str
    enforcement: str
    """"hard", "soft" or "none", as the agent reports it; "opened": a grant of the operator."""
    passed: bool
    """Whether the limit worked as reported."""
    seen: str
    """What happened to the canary, for people."""


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
