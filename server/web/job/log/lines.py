"""The lines of a log as they are shown: made of its bytes, however these were split."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from server.web.job.log.ansi import PLAIN, Style, render, style_after

SHOWN: Final = 4096
"""Bytes of a line; of a longer one it is said how many there are."""
_KEPT: Final = 1 << 16
"""Bytes of a line that is not complete."""
_COMMAND: Final = re.compile(
    r"::(progress|notice|warning|error|event|heartbeat|output|retry-later)(?: ([^\n]*?))?::([^\n]*)"
)
_WORDS: Final = {
    "progress": ("▸", "Progress"),
    "notice": ("●", "Notice"),
    "warning": ("▲", "Warning"),
    "error": ("✕", "Error"),
    "event": ("◆", "Event"),
    "heartbeat": ("♥", "Heartbeat"),
    "output": ("=", "Output"),
    "retry-later": ("↻", "Retry later"),
}
_MARK: Final = Markup('<b class="word"><span aria-hidden="true">{}</span> {}</b> ')
_NO_STOP: Final = 'tabindex="-1"'
"""Of numbers: nobody wants to press Tab for each line."""
_MORE: Final = Markup(' <i class="more">… {:,} more bytes</i>')
_STDERR: Final = '<abbr class="e" title="stderr">E</abbr>'


@dataclass(frozen=True, slots=True)
class Row:
    """A line.

    Attributes:
        kind: name of the command that it is; empty: none.
        more: bytes that are not shown.
    """

    number: int
    text: Markup
    kind: str = ""
    more: int = 0

    def html(
        self, stream: str, address: Markup, *, hit: bool = False, marked: bool = False
    ) -> Markup:
        """Args:
        address: of the page, up to its parameters; ends in ``?`` or ``&``, escaped.
        hit: it is what was searched for.
        marked: it was asked for by its number, and gets the focus.
        """
        number = self.number
        kind = f' data-kind="{self.kind}"' if self.kind else ""
        return Markup(  # noqa: S704 - 1000 of them, and all parts are escaped or ours
            f'<div class="row{" hit" if hit else ""}{" chosen" if marked else ""}" id="L{number}"'
            f"{kind}>"
            f'<a class="n" {"autofocus" if marked else _NO_STOP} '
            f'href="{address}line={number}#L{number}">{number}</a>'
            f"{_STDERR if stream == 'stderr' else ''}"
            f'<span class="t">{self.text}'
            f"{_MORE.format(self.more) if self.more else ''}</span></div>\n"
        )


class Lines:
    """Args:
    number: of the first line.
    style: that text has there.
    commands: lines can be commands.

    Attributes:
        number: of the line that is not complete.
        length: bytes of it so far.
    """

    def __init__(self, number: int = 1, style: Style = PLAIN, *, commands: bool = False) -> None:
        self.number, self.length = number, 0
        self._style, self._commands = style, commands
        self._line = bytearray()
        self._behind: Style | None = None
        """The style behind what has come of the line, where not all of that is kept."""
        self._dropped = 0

    def feed(self, data: bytes) -> list[Row]:
        """The lines that are complete now."""
        rows = []
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._take(piece)
            rows.append(self._row(final=True))
            self.number, self.length = self.number + 1, 0
            self._line, self._behind, self._dropped = bytearray(), None, 0
        self._take(rest)
        return rows

    def unfinished(self) -> Row | None:
        """The line that is not complete, as far as it has come; None: nothing of it has."""
        return self._row(final=False) if self.length else None

    def _take(self, piece: bytes) -> None:
        self.length += len(piece)
        if self._behind is not None:
            cut = piece.rfind(b"\r", 0, len(piece.rstrip(b"\r"))) + 1
            self._behind = style_after(_text(piece[:cut] if cut else piece), self._behind)
            if not cut:
                self._dropped += len(piece)
                return
            self._style, self._behind, self._dropped = self._behind, None, 0
            self._line, piece = bytearray(), piece[cut:]
        self._line += piece
        if len(self._line) > _KEPT:
            self._overwrite()
            if len(self._line) > _KEPT:
                self._dropped = len(self._line) - _KEPT
                self._behind = style_after(_text(self._line), self._style)
                del self._line[_KEPT:]

    def _overwrite(self) -> None:
        """Leave out what a carriage return went back over: progress bars do it often."""
        cut = self._line.rfind(b"\r", 0, len(self._line.rstrip(b"\r"))) + 1
        if cut:
            self._style = style_after(_text(self._line[:cut]), self._style)
            del self._line[:cut]

    def _row(self, *, final: bool) -> Row:
        self._overwrite()
        line = self._line.rstrip(b"\r")
        cut = _whole_characters(line, SHOWN)
        more = len(line) - cut + self._dropped
        mark, kind, text = self._command(_text(line[:cut]))
        shown, style = render(text, self._style)
        if final:
            if self._behind is not None:
                self._style = self._behind
            else:
                self._style = style_after(_text(line[cut:]), style)
        return Row(self.number, mark + shown, kind, more)

    def _command(self, text: str) -> tuple[Markup, str, str]:
        """How a line is marked, its kind, and the text to show."""
        found = _COMMAND.fullmatch(text) if self._commands and text.startswith("::") else None
        if found is None:
            return Markup(), "", text
        kind, parameters, message = found.groups("")
        sign, word = _WORDS[kind]
        pairs = (pair.partition("=") for pair in parameters.split(","))
        values = " of ".join(value.strip() for _, _, value in pairs if value)
        return _MARK.format(sign, f"{word} {values}".rstrip()), kind, message


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace")


def _whole_characters(line: bytearray, most: int) -> int:
    """At most so many bytes, but no part of a character."""
    if len(line) <= most:
        return len(line)
    return next((cut for cut in range(most, most - 4, -1) if line[cut] & 0xC0 != 0x80), most)
