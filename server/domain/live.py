"""What the bundle of a running attempt says: progress, values, lines for people."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from shared import json_text
from shared.clock import Micros, from_iso
from shared.ids import AttemptKey
from shared.wire import OWN_EVENT, Level, LiveDoc, Notice, Progress


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is no move, to be written."""

    event: str
    """Dotted name."""
    message: str
    level: Level = "info"
    fields: Mapping[str, Any] = field(default_factory=dict)
    """For programs, beside the message."""


MOST_OUTPUTS: Final = 100
MOST_NOTICES: Final = 200
"""Of one attempt. An agent takes fewer: these hold for agents that do not."""
_MAX_NAME: Final = 200
_MAX_TEXT: Final = 4_096
_MAX_JSON: Final = 16 << 10
_MAX_FIELDS: Final = 16
_MAX_MESSAGE: Final = 1_024
_EVERY_S: Final = 5.0
_SLOWER: Final = 100
"""After so many events about progress the time between two grows with the age of the attempt."""


@dataclass(frozen=True, slots=True)
class Live:
    """What an attempt has said so far, within bounds."""

    progress: Progress | None = None
    message: str = ""
    """Of the latest progress."""
    output: Mapping[str, Any] = field(default_factory=dict)
    heartbeat_at: Micros | None = None
    notices: tuple[NewEvent, ...] = ()
    """In their order: the first ones are always the same."""

    @property
    def said(self) -> bool:
        """Whether there is something that has events."""
        return bool(self.notices or self.output)

    @property
    def outputs(self) -> dict[str, NewEvent]:
        """An event for each of its values, by name."""
        return {
            name: NewEvent(
                "job.output", f"{name}: {shown_value(value)}", fields={"name": name, "value": value}
            )
            for name, value in self.output.items()
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent has reported of an attempt that runs there."""

    key: AttemptKey
    agent: str
    at: Micros
    live: Live
    news: bool
    """Whether it may hold a notice, or the name of a value, that is no event yet."""
    sampled: bool
    """Whether its progress becomes an event."""

    @property
    def progress_event(self) -> NewEvent | None:
        progress = self.live.progress
        if progress is None or not self.sampled:
            return None
        return NewEvent("job.progress", self.live.message, fields=progress.model_dump())


NOTICES: Final[Mapping[Level, str]] = {
    level: f"job.{level}" for level in ("debug", "info", "notice", "warning", "error")
}
"""Level of a line that run.sh wrote for people -> its event."""


def live_of(document: LiveDoc, now: Micros) -> Live:
    """What a report says, within bounds: an agent may report anything."""
    progress = document.progress
    if progress is not None and not all(
        math.isfinite(one) for one in (progress.current, progress.total or 0.0)
    ):
        progress = None
    output = [
        (_line(name, _MAX_NAME), _value(name, value, document.json_outputs))
        for name, value in list(document.output.items())[:MOST_OUTPUTS]
    ]
    return Live(
        progress=progress,
        message=_line(document.message, _MAX_MESSAGE),
        output=dict(output),
        heartbeat_at=_past(document.heartbeat_at, now),
        notices=tuple(map(_notice, document.notices[:MOST_NOTICES])),
    )


def progress_event_due(age_s: float, since_last_s: float | None) -> bool:
    """Whether progress becomes an event: those of an attempt stay few, however long it runs.

    Args:
        age_s: for how long the attempt has been reported.
        since_last_s: seconds since the last one; None: there was none.
    """
    return since_last_s is None or since_last_s >= max(_EVERY_S, age_s / _SLOWER)


def _notice(one: Notice) -> NewEvent:
    event = one.event if OWN_EVENT.fullmatch(one.event) else NOTICES[one.level]
    fields = [
        (_line(name, _MAX_NAME), _text(value, _MAX_TEXT))
        for name, value in list(one.fields.items())[:_MAX_FIELDS]
    ]
    return NewEvent(event, _text(one.text, _MAX_TEXT), one.level, dict(fields))


def _value(name: str, text: str, of_json: Container[str]) -> Any:
    if name in of_json and len(text) <= _MAX_JSON:
        with suppress(ValueError):
            return json.loads(json_text.normal(text))
    return _text(text, _MAX_TEXT)


def shown_value(value: Any) -> str:
    """An output value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)[:_MAX_TEXT]


def _past(text: str | None, now: Micros) -> Micros | None:
    """An agent's time; its clock may be ahead of ours."""
    try:
        return None if text is None else min(now, max(0, from_iso(text)))
    except (ValueError, OverflowError):
        return None


def _line(text: str, most: int) -> str:
    return " ".join(_text(text, most).split())


def _text(text: str, most: int) -> str:
    return text[:most].replace("\0", " ")
