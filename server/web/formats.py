"""Values as people read them, for templates."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

from shared.units.durations import say_about, say_duration

_WORD: Final = re.compile(r"[a-z][a-z']*[.,;]?")
_SHORT: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def when(at: datetime | None, now: datetime) -> Markup:
    """A time: how far it is from now, with the exact one at hand."""
    if at is None:
        return Markup('<span class="none">–</span>')
    exact = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    machine = at.astimezone(UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        machine, exact, relative((at - now).total_seconds())
    )


def relative(seconds: float) -> str:
    """``5 min ago``, ``in 2 h``. Whole units, rounded down; what is within 5 s is ``just now``."""
    if -5 < seconds < 5:
        return "just now"
    size = abs(seconds)
    text = next((f"{int(size // unit)} {name}" for unit, name in _SHORT if size >= unit), None)
    text = text or f"{int(size)} s"
    return f"{text} ago" if seconds < 0 else f"in {text}"


def duration(seconds: float | None) -> Markup | str:
    """How long something took or may take."""
    return Markup('<span class="none">–</span>') if seconds is None else say_duration(seconds)


def about(at: datetime, now: datetime) -> Markup:
    """How long it is until a time that was estimated."""
    exact = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    machine = at.astimezone(UTC).isoformat(timespec="minutes")
    text = say_about((at - now).total_seconds())
    return Markup('<time datetime="{}" title="about {}">about {}</time>').format(
        machine, exact, text
    )


def number(value: float | None) -> Markup | str:
    """With groups of three."""
    if value is None:
        return Markup('<span class="none">–</span>')
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def sentence(text: str) -> Markup:
    """A message of ours as a sentence: with a full stop, and a capital letter unless it begins with
    a name (of a file, a setting, an agent before a colon).
    """
    if _WORD.fullmatch(text.partition(" ")[0]):
        text = text[:1].upper() + text[1:]
    ends = (".", "!", "?", "…")
    return escape(text if text.endswith(ends) else text + ".") if text else Markup()
