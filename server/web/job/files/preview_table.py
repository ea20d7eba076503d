"""The beginning of a file of separated values as a table, whatever is in it."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from server.web.job.files.preview_text import visible

MAX_ROWS: Final = 200
MAX_COLUMNS: Final = 50
MAX_CELL: Final = 200
"""Characters."""
_DELIMITERS: Final = ",;\t"
_SAMPLE_ROWS: Final = 20
_NUMBER: Final = re.compile(
    # Possessive: a cell may be as long as the window, and blanks are not tried in every division.
    r"\s*+[+-]?(\d++([.,]\d*+)?|[.,]\d++)([eE][+-]?\d++)?\s*+%?\s*+",
    re.ASCII,
)
_NO_NUMBER: Final = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "inf", "-inf"})


@dataclass(frozen=True, slots=True)
class Table:
    """Attributes:
    header: its first row; None: that is one of values.
    rows: the others, each as long as it is.
    numbers: of each column, whether it has only numbers.
    columns: of the longest row, also those that are not shown.
    cut: more rows follow.
    note: why it ends early; empty: it does not.
    """

    header: list[Markup] | None
    rows: list[list[Markup]]
    numbers: list[bool]
    columns: int
    cut: bool
    delimiter: str
    note: str = ""


def read_table(text: str, *, at_end: bool, delimiter: str = "") -> Table:
    """Args:
    text: the beginning of the file; its last row may be cut.
    at_end: nothing follows.
    delimiter: empty: is guessed.
    """
    delimiter = delimiter or _guess(text)
    found, note = _rows(text, delimiter, MAX_ROWS + 2)
    if not at_end and len(found) > 1 and len(found) <= MAX_ROWS + 1:
        found.pop()  # the window may end in the middle of it
    has_header = len(found) > 1 and not any(map(_NUMBER.fullmatch, found[0]))
    header = found.pop(0) if has_header else None
    rows = found[:MAX_ROWS]
    columns = max(map(len, [*rows, header or []]), default=0)
    shown = min(columns, MAX_COLUMNS)
    return Table(
        header=None if header is None else [_cell(one) for one in header[:shown]],
        rows=[[_cell(one) for one in row[:shown]] for row in rows],
        numbers=[_is_number(rows, column) for column in range(shown)],
        columns=columns,
        cut=not at_end or len(found) > MAX_ROWS,
        delimiter=delimiter,
        note=note,
    )


def _rows(text: str, delimiter: str, most: int) -> tuple[list[list[str]], str]:
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            if len(rows) == most:
                break
            if row:
                rows.append(row)
    except csv.Error as problem:
        return rows, f"behind row {len(rows)} it cannot be read as a table: {problem}"
    return rows, ""


def _guess(text: str) -> str:
    """The one that cuts the first rows into the most columns, all alike if possible."""
    best, score = ",", (0, 0)
    for one in _DELIMITERS:
        rows, _ = _rows(text, one, _SAMPLE_ROWS)
        lengths = [len(row) for row in rows]
        if lengths and max(lengths) > 1:
            found = (lengths.count(lengths[0]) if lengths[0] > 1 else 0, lengths[0])
            if found > score:
                best, score = one, found
    return best


def _is_number(rows: list[list[str]], column: int) -> bool:
    cells = [row[column] for row in rows if len(row) > column]
    some = [one for one in cells if one.strip().lower() not in _NO_NUMBER]
    return bool(some) and all(map(_NUMBER.fullmatch, some))


def _cell(text: str) -> Markup:
    return visible(text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}…")
