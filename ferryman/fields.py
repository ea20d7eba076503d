"""The text fields of an upload."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias, TypedDict

from ferryman.errors import BadArgument
from ferryman.states import JobState, Reason

Duration: TypeAlias = str | float
"""Such as ``"1h30m"``, or seconds."""
Words: TypeAlias = str | Iterable[str]


class JobOptions(TypedDict, total=False):
    """What an upload may ask for; None: the service's, or none."""

    memory: str | int | None
    """Bytes, or such as ``"512MB"``; at most the service's, as the next four."""
    disk: str | int | None
    cpus: str | float | None
    pids: str | int | None
    timeout: Duration | None
    """Wall time of an attempt."""
    queue_timeout: Duration | None
    """Longest wait for a start."""
    heartbeat_timeout: Duration | None
    """Longest time without output, progress or heartbeat."""
    expires_after: Duration | None
    """How long everything is kept after the end."""
    not_before: str | datetime | None
    """When it may start: a time with an offset from UTC, or ``"in 2h"``."""
    priority: int | None
    """-100 to 100, among the jobs of the same user."""
    meta: Mapping[str, Any] | None
    """Any JSON; it is shown with the job."""
    retries: int | None
    retry_delays: str | Iterable[Duration] | None
    backoff: Literal["constant", "linear", "exponential", "exponential_jitter"] | None
    """In place of ``retry_delays``, from ``retry_delay`` up to ``max_retry_delay``."""
    retry_delay: Duration | None
    max_retry_delay: Duration | None
    retry_on: Words | None
    """Reason codes, and exit codes as ``"exit:3"``."""
    no_retry_on: Words | None
    array: str | range | None
    """A child for each index, such as ``"0-99"`` or ``range(100)``."""
    array_file: str | None
    """A child for each line of this file of the bundle."""
    max_parallel: int | None
    """Most children under way at once."""
    batch_policy: Literal["wait_all", "fail_fast"] | None
    after: str | int | Iterable[int] | None
    """Jobs that have to complete before it starts."""
    inputs_from: str | int | Iterable[int] | None
    """Likewise; it gets their result files below ``inputs/``."""
    callback_url: str | None
    """An http or https address to which the server posts a webhook when the job has ended."""
    outputs: Words | None
    """Patterns of the files that its result is to have, such as ``"out/*.csv"``; None: all."""
    result_files: Literal["all", "changed"] | None
    """``"changed"``: without files of the bundle and inputs that are as they were."""


class JobFilter(TypedDict, total=False):
    """Which jobs are meant; all may be left out."""

    user: str | None
    service: str | None
    state: JobState | str | None
    tag: str | None
    name: str | None
    text: str | None
    """Their number, or part of the name, a tag or the message."""
    reason: Reason | str | None
    """Why they failed."""
    dead_letter: bool
    """Only those that failed for good and are kept."""
    batch: bool
    """Only parents of batches."""
    parent: int | None
    """Only the children of this job."""
    top_level: bool
    """Without the children of batches."""
    schedule: int | None
    """Only those that this schedule made."""
    since: str | None
    """Uploaded then or later: a time with its offset from UTC, or how long ago, such as ``"2h"``.
    """
    until: str | None


def filter_query(where: JobFilter) -> dict[str, str]:
    """As the server takes it.

    Raises:
        TypeError: there is no such filter.
    """
    for name in where:
        if name not in JobFilter.__annotations__:
            raise TypeError(f"jobs cannot be chosen by {name!r}")
    given = {name: value for name, value in where.items() if value}
    return {name: "true" if value is True else str(value) for name, value in given.items()}


_DURATIONS: Final = frozenset(
    {
        *("timeout", "queue_timeout", "heartbeat_timeout", "expires_after"),
        *("retry_delay", "max_retry_delay"),
    }
)
EARLY: Final = frozenset(JobOptions.__annotations__) - {"meta"}
"""Refused before the body is sent where they are wrong."""


def upload_fields(
    service: str,
    user: str | None,
    name: str | None,
    tags: str | Iterable[str],
    options: JobOptions,
) -> list[tuple[str, str]]:
    """The text fields of an upload. What their values may be is the server's to say.

    Raises:
        BadArgument
    """
    fields = [("user_id", user)] if user else []
    fields.append(("service", service))
    if name:
        fields.append(("name", name))
    tag_list = [tags] if isinstance(tags, str) else list(tags)
    if any("," in tag for tag in tag_list):
        raise BadArgument("a tag cannot have a comma")
    if tag_list:
        fields.append(("tags", ",".join(tag_list)))
    for option, value in options.items():
        if option not in JobOptions.__annotations__:
            nearest = get_close_matches(option, JobOptions.__annotations__, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise TypeError(f"submit() has no argument {option!r}{hint}")
        if value is not None:
            fields.append((option, _text(option, value)))
    return fields


def _text(option: str, value: Any) -> str:
    """The value as the form has it."""
    if isinstance(value, str):
        return value
    if option in _DURATIONS:
        return f"{_plain(value)}s"
    match value:
        case datetime():
            if value.tzinfo is None:
                raise BadArgument(f"{option}: a time without a time zone could mean any")
            return value.isoformat()
        case Mapping():
            return json.dumps(value)
        case range():
            return _indices(option, value)
        case int() | float():
            return _plain(value)
    each: Callable[[Any], str] = _duration if option == "retry_delays" else str
    return ",".join(map(each, value))


def _duration(value: Duration) -> str:
    return value if isinstance(value, str) else f"{_plain(value)}s"


def _indices(option: str, indices: range) -> str:
    if not indices or indices.step < 0:
        raise BadArgument(f"{option}: {indices} has no indices that ascend")
    return f"{indices.start}-{indices[-1]}:{indices.step}"


def _plain(number: float) -> str:
    """Without an exponent, which no duration or size has."""
    return str(number) if isinstance(number, int) else f"{number:f}".rstrip("0").rstrip(".")
