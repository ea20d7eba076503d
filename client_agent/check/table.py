"""What ``check`` found, as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid

from client_agent.check.canaries import Table


def show(table: Table) -> None:
    """Print it on stdout; what to do about it below."""
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
