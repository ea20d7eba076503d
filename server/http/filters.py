"""Filters of lists, as a query or a document names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from server.domain.errors import BadField
from server.domain.field_values import moment
from server.ports import Filter
from shared.clock import Micros
from shared.http.numbers import whole_number
from shared.wire import JobState, Reason

_MAX_ID: Final = 2**63 - 1
MAX_TEXT: Final = 200
"""Characters of a name in a filter."""


def job_filter(given: Mapping[str, str], now: Micros) -> Filter:
    """The jobs that parameters choose; names that are no filter are ignored.

    Raises:
        BadField: a value means nothing.
    """
    chosen: dict[str, Any] = {}
    for name, text in given.items():
        if name in FILTERS:
            field, read = FILTERS[name]
            try:
                chosen[field] = moment(text, now) if read is None else read(text)
            except ValueError as problem:
                message = f"Invalid {name}: {problem}"
                raise BadField(name, f"invalid_{name}", message) from None
    return Filter(**chosen)


def _text(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ValueError(f"it is longer than {MAX_TEXT} characters")
    return text


def _search(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty; leave it out for all jobs")
    return _text(text.strip())


def _state(text: str) -> JobState:
    try:
        return JobState("Cancelled" if text == "Killed" else text)
    except ValueError:
        raise ValueError(f"{text[:32]!r} is none of {', '.join(JobState)}") from None


def _reason(text: str) -> Reason:
    try:
        return Reason(text)
    except ValueError:
        raise ValueError(f"{text[:32]!r} is none of {', '.join(Reason)}") from None


def _number(text: str) -> int:
    number = whole_number(text, most=_MAX_ID)
    if number is None:
        raise ValueError(f"{text[:32]!r} is not a number")
    return number


def _only(text: str) -> bool:
    if text not in ("true", "1"):
        raise ValueError(f"{text[:32]!r} is not true; leave it out for all jobs")
    return True


FILTERS: Final[Mapping[str, tuple[str, Callable[[str], Any] | None]]] = {
    "user": ("user_id", _text),
    "service": ("service", _text),
    "state": ("state", _state),
    "tag": ("tag", _text),
    "name": ("name", _text),
    "text": ("text", _search),
    "reason": ("reason", _reason),
    "dead_letter": ("dead_letter", _only),
    "top_level": ("top_level", _only),
    "batch": ("batch", _only),
    "since": ("since", None),
    "until": ("until", None),
    "parent": ("parent_id", _number),
    "schedule": ("schedule_id", _number),
}
"""Parameter -> field of the filter, and what reads it; None: a time."""
