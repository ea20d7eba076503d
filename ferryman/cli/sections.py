"""The list of commands in ``ferryman --help``, by what they are about."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup

JOBS: Final = "Jobs"
FOR_OPERATORS: Final = "For operators"
PROGRAMS: Final = "Programs"
OWN: Final = "This command line"


class Sections(TyperGroup):
    """Commands under the headings of their ``rich_help_panel``, in the order of the headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = {name: one for name, one in self.commands.items() if not one.hidden}
        width = formatter.width - 6 - max(map(len, shown))
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in (JOBS, FOR_OPERATORS, PROGRAMS, OWN)
        }
        for name, one in shown.items():
            title = getattr(one, "rich_help_panel", None) or JOBS
            sections.setdefault(title, []).append((name, one.get_short_help_str(width)))
        for title, rows in sections.items():
            if not rows:
                continue
            with formatter.section(title):
                formatter.write_dl(rows)
