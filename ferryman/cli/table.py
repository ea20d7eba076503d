"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_STYLE: Final = {
    "Running": "cyan",
    "Completed": "green",
    "Failed": "red",
    "Cancelled": "yellow",
    "Unknown": "magenta",
    "active": "green",
    "draining": "yellow",
    "lost": "red",
}
_MIN_MESSAGE_WIDTH: Final = 12
"""Columns; a table drops columns before its messages get narrower."""


def draw(
    heads: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    drop: Sequence[str],
    *,
    cut_last: bool,
) -> None:
    """Print it, as wide as the terminal.

    Args:
        rows: what a terminal may be sent.
        drop, cut_last: as of ``show.print_table``.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    last = len(heads) - 1
    kept = [at for at in range(last) if heads[at] not in drop]
    # What one would type stays whole, even where the terminal has to break the line.
    rest = 1 if cut_last else widths[last]
    console.width = max(console.width, sum(widths[at] + 2 for at in kept) + rest)
    least = min(widths[last], _MIN_MESSAGE_WIDTH) if cut_last else widths[last]
    shown = list(range(len(heads)))
    for name in drop:
        # On a narrow terminal columns are dropped, then the last is cut; numbers are always whole.
        needed = sum(widths[at] + 2 for at in shown[:-1]) + least
        if needed > console.width:
            shown.remove(heads.index(name))
    table = Table(box=None, pad_edge=False, expand=True)
    for at in shown:
        table.add_column(
            heads[at],
            overflow="ellipsis",
            no_wrap=True,
            ratio=1 if at == last else None,
            min_width=widths[at] if at in kept else None,
        )
    for row in rows:
        style = _STYLE.get(row[1], "")
        table.add_row(*(Text(row[at], style if at == 1 else "") for at in shown))
    console.print(table)
