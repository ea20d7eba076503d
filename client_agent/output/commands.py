"""The commands that run.sh prints, such as ``::progress value=45,total=100::step 45``. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from shared.units.durations import parse_duration
from shared.wire import Level, Progress, RetryLater

MAX_TEXT: Final = 1024
"""Characters of a message; the rest is cut off."""
MAX_NAME: Final = 64
MAX_VALUE: Final = 4096
"""Bytes of an output value."""
MAX_NUMBER: Final = 1e15
"""Up to this, a float holds every whole number."""
MAX_LATER_S: Final = 86_400.0
"""A longer delay is this one."""
_MAX_PARAMETERS: Final = 16

_NUMBER: Final = re.compile(
    r"\+?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?"
)
_NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")
_WORD: Final = re.compile(rb"[a-z][a-z-]{0,30}")
_ESCAPED: Final = re.compile("%(0[ad]|25|3a|2c)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SetProgress:
    progress: Progress
    message: str


@dataclass(frozen=True, slots=True)
class AddNotice:
    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class SetOutput:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    pass


Command: TypeAlias = SetProgress | AddNotice | SetOutput | RetryLater | Heartbeat
_Make: TypeAlias = Callable[[dict[str, str], str], Command]


class Malformed(Exception):
    """It has the form of a command, but is none; the text says why."""


def parse(line: bytes) -> Command | None:
    """The command of a line that begins with ``::``; None: it is ordinary text.

    Raises:
        Malformed: nothing can be done with it.
    """
    head, complete, text = line[2:].partition(b"::")
    word, _, parameters = head.partition(b" ")
    if not _WORD.fullmatch(word):
        return None
    name = word.decode()
    make = _COMMANDS.get(name)
    if not complete:
        if make is not None:
            raise Malformed(f"the second :: is missing, as in ::{name}::")
        return None
    if make is None:
        raise Malformed(f"there is no command {name}")
    pairs = _parameters(parameters.decode(errors="replace"))
    return make(pairs, _unescape(text.decode(errors="replace")))


def plain(text: str) -> str:
    """The text, with characters that control a terminal, or cannot be stored, escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def _parameters(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(",", _MAX_PARAMETERS)[:_MAX_PARAMETERS])
    return {name.strip(): _unescape(value.strip()) for name, _, value in pairs}


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    return _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 16)), text)


def _short(text: str) -> str:
    return plain(text[:MAX_TEXT])[:MAX_TEXT]


def _progress(parameters: dict[str, str], message: str) -> SetProgress:
    total = parameters.get("total", "")
    progress = Progress(
        current=_number("value", parameters.get("value", "")),
        total=_number("total", total) if total else None,
    )
    return SetProgress(progress, _short(message))


def _number(name: str, text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text) else -1.0
    if not 0 <= number <= MAX_NUMBER:
        raise Malformed(f"{name} is not a number from 0 to {MAX_NUMBER:g}")
    return number


def _notice(level: Level) -> _Make:
    return lambda _, message: AddNotice(level, _short(message))


def _output(parameters: dict[str, str], value: str) -> SetOutput:
    name = parameters.get("name", "")
    if not _NAME.fullmatch(name):
        raise Malformed(
            f"name is not 1 to {MAX_NAME} letters, digits, points, underscores or hyphens"
        )
    value = plain(value)
    if len(value.encode()) > MAX_VALUE:
        raise Malformed(f"the value has more than {MAX_VALUE} bytes")
    return SetOutput(name, value)


def _retry_later(parameters: dict[str, str], message: str) -> RetryLater:
    text = parameters.get("after", "")
    try:
        after_s = min(parse_duration(text), MAX_LATER_S) if text else None
    except ValueError:
        raise Malformed("after is not a duration such as 90s or 5m") from None
    return RetryLater(after_s=after_s, message=_short(message))


_COMMANDS: Final[dict[str, _Make]] = {
    "progress": _progress,
    "notice": _notice("notice"),
    "warning": _notice("warning"),
    "error": _notice("error"),
    "heartbeat": lambda *_: Heartbeat(),
    "output": _output,
    "retry-later": _retry_later,
}
