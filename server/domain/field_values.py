"""The values of an upload's optional fields: one parser for each, which raises ValueError; and what
is meant by a name that is not known.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias, get_args

from server.domain.errors import BadField
from server.domain.retry import BackoffKind, check_retry_reasons
from server.domain.webhooks import webhook_target
from shared import json_text
from shared.clock import SECOND, Micros
from shared.files.globs import MAX_PATTERNS, check_pattern
from shared.settings.limits import FIELDS as LIMITS
from shared.settings.limits import parse_limit
from shared.units.durations import parse_duration
from shared.wire import ResultFiles

Parser: TypeAlias = Callable[[str], Any]
_TAG: Final = re.compile(r"[^\s,\x00-\x1f\x7f]{1,64}")
MAX_TAGS: Final = 32
_MAX_META: Final = 16 << 10
_MAX_DEPENDENCIES: Final = 1_000
_MAX_DELAYS: Final = 100
_LARGEST_INDEX: Final = 10**9
_MAX_RANGES: Final = 1_000
_RANGE: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")
_YEARS: Final = (1970, 9000)
"""A time in them can be shown in every time zone."""


@dataclass(frozen=True, slots=True)
class Later:
    """When a job may start: a time, or so long after its upload."""

    at: Micros | None = None
    after_s: float = 0.0

    def from_now(self, now: Micros) -> Micros:
        """The time, or 0 where it has passed."""
        at = now + round(self.after_s * SECOND) if self.at is None else self.at
        return at if at > now else 0


def _whole(least: int, most: int) -> Parser:
    def parse(text: str) -> int:
        text = text.strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise ValueError(f"{text[:32]!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def _name(text: str) -> str:
    if len(text) > 200 or not text.isprintable():
        raise ValueError(f"{text[:64]!r} is not up to 200 printable characters")
    return text


def tags(text: str) -> tuple[str, ...]:
    """Tags, separated by commas; each once. Raises ValueError."""
    found = tuple(dict.fromkeys(_words(text)))
    wrong = next((tag for tag in found if not _TAG.fullmatch(tag)), None)
    if len(found) > MAX_TAGS or wrong is not None:
        problem = f"{len(found)} tags" if wrong is None else f"{wrong[:72]!r} is no tag"
        raise ValueError(
            f"{problem}; there may be up to {MAX_TAGS} words of up to 64 characters each, "
            "separated by commas"
        )
    return found


def _delays(text: str) -> tuple[float, ...]:
    words = _words(text)
    if not 1 <= len(words) <= _MAX_DELAYS:
        raise ValueError(f"{text[:64]!r} is not a list of 1 to {_MAX_DELAYS} delays as in 10s,1m")
    try:
        return tuple(map(parse_duration, words))
    except ValueError as problem:
        raise ValueError(f"{problem}; write delays as in 90s,5m,1h30m") from None


def _one_of(*known: str) -> Parser:
    def parse(text: str) -> str:
        if text.strip() not in known:
            raise ValueError(f"{text[:64]!r} is none of {', '.join(known)}")
        return text.strip()

    return parse


def _reasons(*, retried: bool) -> Parser:
    def parse(text: str) -> frozenset[str]:
        words = _words(text)
        check_retry_reasons(words, retried=retried)
        return frozenset(words)

    return parse


def when(text: str) -> Later:
    """A time with an offset from UTC (RFC 3339), or ``in 2h``. Raises ValueError."""
    text = text.strip()
    if text.startswith("in "):
        return Later(after_s=parse_duration(text.removeprefix("in ")))
    return Later(at=_time(text, "2030-01-31T09:00:00Z, 2030-01-31T09:00:00+01:00 or in 2h"))


def moment(text: str, now: Micros) -> Micros:
    """A time with an offset from UTC (RFC 3339), or how long ago it was, as in ``2h``. Raises
    ValueError.
    """
    try:
        ago_s = parse_duration(text)
    except ValueError:
        return _time(text.strip(), "2030-01-31T09:00:00Z or 2h, which means two hours ago")
    return max(0, now - round(ago_s * SECOND))


def _time(text: str, such_as: str) -> Micros:
    try:
        at = datetime.fromisoformat(text[:64])
    except ValueError:
        raise ValueError(f"{text[:64]!r} is not a time such as {such_as}") from None
    if at.tzinfo is None:
        raise ValueError(f"{text[:64]!r} does not say its offset from UTC; write {such_as}")
    first, last = _YEARS
    if not first <= at.year <= last:
        raise ValueError(f"{text[:64]!r} is not in the years {first} to {last}")
    return round(at.timestamp() * SECOND)


def meta(text: str) -> str:
    """A JSON object, as it is stored. Raises ValueError."""
    if len(text.encode()) > _MAX_META:
        raise ValueError(f"it is longer than {_MAX_META} bytes")
    try:
        stored = json_text.normal(text)
    except json.JSONDecodeError as problem:
        such_as = 'a JSON object such as {"key": "value"}'
        raise ValueError(f"{text[:64]!r} is not {such_as}: {problem}") from None
    if not stored.startswith("{"):
        raise ValueError("it is JSON, but not an object")
    return stored


def _jobs(text: str) -> tuple[int, ...]:
    words = _words(text)
    if not 1 <= len(words) <= _MAX_DEPENDENCIES:
        raise ValueError(f"there may be 1 to {_MAX_DEPENDENCIES} jobs")
    for word in words:
        if not re.fullmatch("[0-9]{1,18}", word):
            raise ValueError(f"{word[:32]!r} is not the number of a job; write 17 or 17,18")
    return tuple(dict.fromkeys(map(int, words)))


def _array(text: str) -> tuple[tuple[int, int, int], ...]:
    """Ranges of indices: ``0-99``, ``0-99:2`` and ``1,5,9-12``."""
    such_as = "write 0-99, 0-99:10 or 1,5,9-12"
    words = _words(text)
    if not 1 <= len(words) <= _MAX_RANGES:
        raise ValueError(f"{text[:64]!r} is not a list of indices; {such_as}")
    ranges: list[tuple[int, int, int]] = []
    for word in words:
        match = _RANGE.fullmatch(word)
        if match is None:
            raise ValueError(f"{word[:64]!r} is not a range of indices; {such_as}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        step = 1 if match[3] is None else int(match[3])
        if last < first or not step or last > _LARGEST_INDEX:
            raise ValueError(f"{word[:64]!r} is not a range of indices; {such_as}")
        last -= (last - first) % step
        if ranges and first <= ranges[-1][1]:
            raise ValueError(f"{word[:64]!r} begins at or below {ranges[-1][1]}: indices ascend")
        ranges.append((first, last, step))
    return tuple(ranges)


def _file(text: str) -> str:
    if len(text) > 1_000 or not text.isprintable() or text.startswith("/"):
        raise ValueError(f"{text[:64]!r} is not the name of a file in the bundle")
    return text


def _callback_url(text: str) -> str:
    webhook_target(text)
    return text


def _outputs(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(_words(text)))
    if not 1 <= len(words) <= MAX_PATTERNS:
        raise ValueError(f"there may be 1 to {MAX_PATTERNS} patterns, separated by commas")
    return tuple(map(check_pattern, words))


@dataclass(frozen=True, slots=True)
class Field:
    """An optional field of an upload.

    Attributes:
        parse: its value.
        asks: the field of what is wanted that it is; empty: it is a part of something.
        most: characters; more than others may those have that are lists, of as many as are useful.
    """

    parse: Parser
    asks: str = ""
    most: int = 1 << 10

    def read(self, text: str) -> Any:
        """Its value; a text that is longer than useful is refused first. Raises ValueError."""
        if len(text) > self.most:
            raise ValueError(f"it is longer than {self.most} characters")
        return self.parse(text)


FIELDS: Final[Mapping[str, Field]] = {
    "name": Field(_name, "name"),
    "tags": Field(tags, "tags", 4 << 10),
    "priority": Field(_whole(-100, 100), "priority"),
    "meta": Field(meta, "meta", _MAX_META),
    "timeout": Field(parse_duration, "timeout_s"),
    "queue_timeout": Field(parse_duration, "queue_timeout_s"),
    "heartbeat_timeout": Field(parse_duration, "heartbeat_timeout_s"),
    "expires_after": Field(parse_duration, "expires_after_s"),
    "retries": Field(_whole(0, 1_000_000), "retry.retries"),
    "retry_delays": Field(_delays, "retry.delays_s", 4 << 10),
    "backoff": Field(lambda text: BackoffKind(_one_of(*BackoffKind)(text)), "retry.backoff"),
    "retry_delay": Field(parse_duration, "retry.delay_s"),
    "max_retry_delay": Field(parse_duration, "retry.max_delay_s"),
    "retry_on": Field(_reasons(retried=True), "retry.retry_on", 4 << 10),
    "no_retry_on": Field(_reasons(retried=False), "retry.no_retry_on", 4 << 10),
    "not_before": Field(when, "not_before"),
    "array": Field(_array, most=32 << 10),
    "array_file": Field(_file),
    "max_parallel": Field(_whole(0, 1_000_000)),
    "batch_policy": Field(_one_of("fail_fast", "wait_all")),
    "after": Field(_jobs, "after", 20 << 10),
    "inputs_from": Field(_jobs, "inputs_from", 20 << 10),
    "callback_url": Field(_callback_url, "callback_url", 2 << 10),
    "outputs": Field(_outputs, "outputs", 16 << 10),
    "result_files": Field(_one_of(*get_args(ResultFiles)), "result_files"),
    **{name: Field(partial(parse_limit, name)) for name in LIMITS},
}


_LONGEST: Final = 32
"""Of a name that is compared: the time grows with its length."""


def hint(name: str, known: Collection[str]) -> str:
    """What to write in place of a name that is not known, as the end of a sentence."""
    near = difflib.get_close_matches(name[:_LONGEST], list(known), 1)
    if near:
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(known)}" if known else "there are none"


def unknown_field(name: str, known: Collection[str]) -> BadField:
    """What a form or document has, and nobody asks for."""
    message = f"Unknown field {name[:64]!r}; {hint(name, known)}"
    return BadField(name[:64], "unknown_field", message)
