"""The lines of a log as HTML, with their colours."""

from __future__ import annotations

import colorsys
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup, escape

_TOKEN: Final = re.compile(
    # Possessive: what was read once is not tried again in another way.
    r"\x1b(?:"
    r"\[(?P<sgr>[0-9;:]*+)m"
    r"|\[[0-?]*+[ -/]*+[@-~]"  # moves the cursor, clears, asks
    r"|[\]PX^_][^\x07\x1b\n]*+(?:\x07|\x1b\\)"  # titles, hyperlinks and other strings
    r"|[ -/]*+[0-~]"
    r")?"
    r"|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # turn text around
)
_UNSEEN: Final = "\x07\x08\x0d"
"""Bell, backspace and carriage return are left out without a sign."""
_ON: Final = {1: "b", 2: "d", 3: "i", 4: "u", 7: "r", 9: "s", 21: "u"}
_OFF: Final = {22: "bd", 23: "i", 24: "u", 27: "r", 29: "s"}
_USUAL: Final = 16
"""Characters of parameters whose meaning is remembered: logs repeat the same few."""
_LEVELS: Final = (0, 95, 135, 175, 215, 255)
"""Of red, green and blue in the cube of 256 colours."""
_HUES: Final = (1, 3, 2, 6, 4, 5)
"""Red, yellow, green, cyan, blue, magenta: 60 degrees each."""
CLASSES: Final = frozenset("bdiusr") | {f"{kind}{n}" for kind in "fg" for n in range(16)}
"""All that a span can have: bold, dim, italic, underlined, struck, reverse; colour and ground."""


@dataclass(frozen=True, slots=True)
class Style:
    """How text looks. Colours are 0 to 15; None: the usual one."""

    colour: int | None = None
    ground: int | None = None
    marks: frozenset[str] = frozenset()

    def after(self, parameters: str) -> Style:
        """The style behind ``ESC [ parameters m``."""
        return _after(self, parameters) if len(parameters) <= _USUAL else self._read(parameters)

    def _read(self, parameters: str) -> Style:
        style, rest = self, iter(parameters.split(";"))
        for text in rest:
            code = _number(text.partition(":")[0])
            if code == 0:
                style = PLAIN
            elif code in _ON and text != "4:0":
                style = replace(style, marks=style.marks | {_ON[code]})
            elif code in _OFF or text == "4:0":
                style = replace(style, marks=style.marks - set(_OFF.get(code, "u")))
            elif code in (38, 48):
                found = _given(text, rest)
                style = replace(style, colour=found) if code == 38 else replace(style, ground=found)
            elif 30 <= code <= 37 or 90 <= code <= 97:
                style = replace(style, colour=code - 30 if code < 90 else code - 82)
            elif 40 <= code <= 47 or 100 <= code <= 107:
                style = replace(style, ground=code - 40 if code < 100 else code - 92)
            elif code == 39:
                style = replace(style, colour=None)
            elif code == 49:
                style = replace(style, ground=None)
        return style


PLAIN: Final = Style()


@functools.lru_cache(4096)
def _after(style: Style, parameters: str) -> Style:
    return style._read(parameters)


def render(text: str, style: Style = PLAIN) -> tuple[Markup, Style]:
    """A line as HTML, which has no other tags than ``<span class="…">``, and the style behind it.

    Args:
        text: without its end; of unfinished sequences at its end nothing is shown.
    """
    if text.isprintable() and style == PLAIN:
        return escape(text), style
    runs: list[tuple[str, list[str]]] = []
    at = 0

    def show(piece: str) -> None:
        names = class_names(style)
        if runs and runs[-1][0] == names:
            runs[-1][1].append(piece)
        else:
            runs.append((names, [piece]))

    for token in _TOKEN.finditer(text):
        if token.start() > at:
            show(text[at : token.start()])
        at = token.end()
        if (parameters := token["sgr"]) is not None:
            style = style.after(parameters)
        elif not token[0].startswith("\x1b") and token[0] not in _UNSEEN:
            show(_picture(token[0]))
    if at < len(text):
        show(text[at:])
    return Markup("").join(_spans(runs)), style


def style_after(text: str, style: Style) -> Style:
    """The style behind text that is not shown."""
    for token in _TOKEN.finditer(text):
        if (parameters := token["sgr"]) is not None:
            style = style.after(parameters)
    return style


def stripped(text: str) -> str:
    """The text that is seen; line ends stay."""
    if "\x1b" not in text:
        return text
    return _TOKEN.sub(lambda token: token[0] if token[0] == "\n" else "", text)


@functools.lru_cache(4096)
def class_names(style: Style) -> str:
    """Of a span with this style, separated by blanks; empty: it needs none.

    Reverse swaps the two colours, so that each stays readable on the other in both themes.
    """
    colour, ground, marks = style.colour, style.ground, style.marks
    if "r" in marks and (colour, ground) != (None, None):
        colour, ground, marks = ground, colour, marks - {"r"}
    names = sorted(marks)
    if colour is not None:
        names.append(f"f{colour}")
    if ground is not None:
        names.append(f"g{ground}")
    return " ".join(names)


@functools.lru_cache(4096)
def nearest(red: int, green: int, blue: int) -> int:
    """Which of the 16 colours comes nearest to one of 24 bits: by its hue, or if it is grey by its
    lightness.
    """
    hue, light, saturation = colorsys.rgb_to_hls(red / 255, green / 255, blue / 255)
    if saturation < 0.2 or not 0.06 < light < 0.94:
        return next((n for most, n in ((0.2, 0), (0.5, 8), (0.85, 7)) if light < most), 15)
    return _HUES[round(hue * 6) % 6] + (8 if light > 0.6 else 0)


def _spans(runs: list[tuple[str, list[str]]]) -> Iterator[Markup]:
    for names, pieces in runs:
        text = escape("".join(pieces))
        # A window has up to 130,000 of them, and names are among CLASSES.
        yield Markup(f'<span class="{names}">{text}</span>') if names else text  # noqa: S704


def _picture(control: str) -> str:
    """What shows which control character was there."""
    code = ord(control)
    if code >= 0x2000:
        return f"\\u{{{code:x}}}"
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def _given(text: str, rest: Iterator[str]) -> int | None:
    """The colour of ``38;5;n``, ``38;2;r;g;b``, or the same with colons."""
    if ":" in text:
        words = text.split(":")
        kind, values = words[1], words[2:]
        values = values[-3:] if kind == "2" else values[:1]
    else:
        kind = next(rest, "")
        values = [next(rest, "none") for _ in range({"5": 1, "2": 3}.get(kind, 0))]
    numbers = [_number(word) for word in values]
    if any(not 0 <= number <= 255 for number in numbers):
        return None
    if kind == "2" and len(numbers) == 3:
        return nearest(*numbers)
    return _of_256(numbers[0]) if kind == "5" and numbers else None


def _of_256(number: int) -> int:
    if number < 16:
        return number
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return nearest(grey, grey, grey)
    cube = number - 16
    return nearest(_LEVELS[cube // 36], _LEVELS[cube // 6 % 6], _LEVELS[cube % 6])


def _number(text: str) -> int:
    """0 where nothing is given, as for terminals; -1: none that means anything."""
    return (int(text) if len(text) <= 3 else -1) if text else 0


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
