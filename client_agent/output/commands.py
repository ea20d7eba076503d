"""The commands that run.sh prints, such as ``::progress value=45,total=100::step 45``. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from shared import json_text
from shared.units.durations import parse_duration
from shared.wire import OWN_EVENT, Level, Progress, RetryLater

MAX_TEXT: Final = 1024
"""Characters of a message; the rest is cut off."""
MAX_NAME: Final = 64
MAX_VALUE: Final = 4096
"""Bytes of an output value."""
MAX_JSON: Final = 16 << 10
"""Bytes of one that is JSON."""
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
    event: str = ""
    """A name of its own; empty: the level says it."""
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetOutput:
    name: str
    value: str
    is_json: bool = False


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
    known = _COMMANDS.get(name)
    if not complete:
        if known is not None:
            raise Malformed(f"the second :: is missing, as in ::{name}::")
        return None
    if known is None:
        raise Malformed(f"there is no command {name}")
    make, keys = known
    pairs = _parameters(parameters.decode(errors="replace"))
    for key in pairs:
        if not (_NAME.fullmatch(key) if keys is None else key in keys):
            raise Malformed(f"there is no key {plain(key[:MAX_NAME])}")
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
    parts = [part for part in text.split(",", _MAX_PARAMETERS) if part.strip()]
    if len(parts) > _MAX_PARAMETERS:
        raise Malformed(f"there are more than {_MAX_PARAMETERS} keys")
    pairs = (part.partition("=") for part in parts)
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
    return lambda fields, message: AddNotice(level, _short(message), fields=_fields(fields))


def _event(parameters: dict[str, str], message: str) -> AddNotice:
    name = parameters.pop("name", "")
    if not OWN_EVENT.fullmatch(name):
        raise Malformed(
            f"name is not of dotted words as pages.done, up to {MAX_NAME} characters, or begins "
            "with job. or ferryman."
        )
    return AddNotice("info", _short(message), name, _fields(parameters))


def _fields(parameters: dict[str, str]) -> dict[str, str]:
    return {key: _short(value) for key, value in parameters.items()}


def _output(parameters: dict[str, str], value: str) -> SetOutput:
    name = parameters.get("name", "")
    if not _NAME.fullmatch(name):
        raise Malformed(
            f"name is not 1 to {MAX_NAME} letters, digits, points, underscores or hyphens"
        )
    kind = parameters.get("type", "text")
    if kind not in ("text", "json"):
        raise Malformed("type is neither text nor json")
    is_json = kind == "json"
    try:
        value = json_text.normal(value) if is_json else plain(value)
    except ValueError as problem:
        raise Malformed(f"the value is not JSON: {problem}") from None
    most = MAX_JSON if is_json else MAX_VALUE
    if len(value.encode()) > most:
        raise Malformed(f"the value has more than {most} bytes")
    return SetOutput(name, value, is_json)


def _retry_later(parameters: dict[str, str], message: str) -> RetryLater:
    text = parameters.get("after", "")
    try:
        after_s = min(parse_duration(text), MAX_LATER_S) if text else None
    except ValueError:
        raise Malformed("after is not a duration such as 90s or 5m") from None
    return RetryLater(after_s=after_s, message=_short(message))


_COMMANDS: Final[dict[str, tuple[_Make, Collection[str] | None]]] = {
    "progress": (_progress, ("value", "total")),
    "notice": (_notice("notice"), None),
    "warning": (_notice("warning"), None),
    "error": (_notice("error"), None),
    "event": (_event, None),
    "heartbeat": (lambda *_: Heartbeat(), ()),
    "output": (_output, ("name", "type")),
    "retry-later": (_retry_later, ("after",)),
}
"""With the keys of each; None: any, which are kept as fields."""
