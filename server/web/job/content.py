"""Some bytes of a file for people: as text, as numbers, or as a table. Whatever they are."""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

WINDOW: Final = 64 << 10
"""Bytes of a file on a page."""
MAX_LINES: Final = 2_000
"""On a page."""
HEX_BYTES: Final = 512
_IN_ROW: Final = 16
_TAB, _NEWLINE, _RETURN, _ESCAPE, _FORM_FEED = 9, 10, 13, 27, 12
_TEXT_CONTROLS: Final = frozenset({_TAB, _NEWLINE, _RETURN, _ESCAPE, _FORM_FEED, 8, 7})
_CONTROLS: Final = bytes(one for one in range(32) if one not in _TEXT_CONTROLS)
_MOST_CONTROLS: Final = 0.02
_UTF16: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
WIDE: Final = frozenset(_UTF16.values())
_ODD: Final = re.compile(
    "([\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]+)"
)
"""What is not seen, or turns around what follows it."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Attributes:
    skipped: bytes in front of it that are not shown.
    used: its encoding.
    following: that of the bytes behind it, where it cannot be seen in them; empty: it can.
    note: what is to be known of it; empty: nothing.
    """

    text: str
    skipped: int
    used: str
    following: str
    note: str


@dataclass(frozen=True, slots=True)
class Text:
    """A window of a text.

    Attributes:
        lines: as they are shown.
        note: what is to be known of the characters; empty: nothing.
        stop: where the next window begins, in bytes of the file.
        encoding: of the windows that follow, where it cannot be seen in them.
    """

    lines: list[Markup]
    note: str
    stop: int
    encoding: str


def visible(text: str) -> Markup:
    """The text, with what cannot be seen or turns text around shown as code points."""
    if _ODD.search(text) is None:
        return Markup.escape(text)
    # Escaping neither makes nor changes such characters, and their code points need none.
    marked = _ODD.sub(_marked, str(Markup.escape(text)))
    return Markup(marked)  # noqa: S704 - 16,000 of them in one window


def _marked(found: re.Match[str]) -> str:
    return f'<span class="odd">{"".join(map(_code, found[0]))}</span>'


def spelled(text: str) -> str:
    """The same as plain text: for attributes and titles."""
    return _ODD.sub(lambda found: "".join(map(_code, found[0])), text)


def _code(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"


def is_binary(data: bytes) -> bool:
    """Whether the beginning of a file is not worth reading as text."""
    if not data or data.startswith(tuple(_UTF16)):
        return False
    controls = len(data) - len(data.translate(None, _CONTROLS))
    return b"\0" in data[:8192] or controls > len(data) * _MOST_CONTROLS


def decode(data: bytes, start: int, *, at_end: bool, encoding: str = "") -> Decoded:
    """Bytes of a file from ``start`` on; a character that is cut at their end is left out."""
    skipped = 0
    if not start and (bom := next((one for one in _UTF16 if data.startswith(one)), None)):
        encoding, skipped = _UTF16[bom], len(bom)
    elif not start and data.startswith(codecs.BOM_UTF8):
        skipped = len(codecs.BOM_UTF8)
    elif start and not encoding:  # perhaps in the middle of a character
        while skipped < min(3, len(data)) and data[skipped] & 0xC0 == 0x80:
            skipped += 1
    if encoding:
        text = codecs.getincrementaldecoder(encoding)("replace").decode(data[skipped:], at_end)
        return Decoded(text, skipped, encoding, encoding, "It is encoded in UTF-16.")
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data[skipped:], at_end)
    except UnicodeDecodeError:
        note = "It is not UTF-8: its bytes are shown as Latin-1, perhaps wrongly."
        return Decoded(data.decode("latin-1"), 0, "latin-1", "", note)
    return Decoded(text, skipped, "utf-8", "", "")


def read_text(data: bytes, start: int, *, at_end: bool, encoding: str = "") -> Text:
    """A window.

    Args:
        data: bytes of the file from ``start`` on. What is shown ends with a line, if it can.
        at_end: nothing follows in the file.
        encoding: as the window before said.
    """
    found = decode(data, start, at_end=at_end, encoding=encoding)
    lines, length = _lines(found.text, at_end=at_end)
    taken = len(data)
    if length < len(found.text) or not at_end:
        taken = found.skipped + len(found.text[:length].encode(found.used, "surrogatepass"))
    shown = [visible(line.removesuffix("\r")) for line in lines]
    return Text(shown, found.note, start + taken, found.following)


def _lines(text: str, *, at_end: bool) -> tuple[list[str], int]:
    """Lines, and how many characters they take with their ends."""
    lines = text.split("\n", MAX_LINES)
    whole = len(text) - len(lines[-1])
    # The last piece has no end yet. It is shown all the same where it is most of the window.
    if len(lines) > MAX_LINES or (not at_end and whole and whole >= len(text) // 2):
        return lines[:-1], whole
    if at_end and not lines[-1]:
        lines.pop()  # behind the last line's end is no line
    return lines, len(text)


def hex_rows(data: bytes) -> list[tuple[str, str, str]]:
    """Position, bytes and characters, 16 in a row."""
    rows = []
    for at in range(0, min(len(data), HEX_BYTES), _IN_ROW):
        some = data[at : at + _IN_ROW]
        pairs = f"{some[:8].hex(' ')}  {some[8:].hex(' ')}".rstrip()
        text = "".join(chr(one) if 32 <= one < 127 else "·" for one in some)
        rows.append((f"{at:08x}", pairs, text))
    return rows


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
