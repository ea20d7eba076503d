"""The text fields of uploads: what each means, an example, and how it is written. For
``/openapi.json`` and for the page that uploads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from server.domain.retry_policy import BackoffKind
from server.http.parameter_types import Param


def field_of(text: str, such: str, **more: Any) -> Param:
    """A field of a form: what it means, and an example."""
    return Param(text, {"type": "string", **more}, such)


def _duration(text: str, such: str) -> Param:
    return field_of(text, such, pattern=r"^(\d{1,3}[wdhms])?$")


def words_of(text: str, such: str, values: tuple[str, ...]) -> Param:
    """One that is one of some words, or left empty."""
    return field_of(text, such, enum=["", *values])


_SIZE: Final = r"^([1-9]\d{0,3}[MG]i?B)?$"
_IDS: Final = r"^([1-9]\d{0,8}(,[1-9]\d{0,8})*)?$"
_DELAYS: Final = r"^(\d{1,3}[dhms](,\d{1,3}[dhms])*)?$"
_TAGS: Final = r"^([A-Za-z0-9_.-]{1,64}(,[A-Za-z0-9_.-]{1,64})*)?$"

FIELDS: Final[Mapping[str, Param]] = {
    "name": field_of("a name for people", "first try", maxLength=200),
    "tags": field_of("separated by commas", "batch-7,test", pattern=_TAGS),
    "priority": field_of(
        "-100 to 100, the higher comes first among the user's own jobs",
        "10",
        pattern=r"^([+-]?(\d{1,2}|100))?$",
    ),
    "not_before": field_of("when it may start: a time with its offset from UTC, or in 2h", "in 2h"),
    "meta": field_of("a JSON object that is kept with the job, up to 16 KiB", '{"sample": 7}'),
    "after": field_of("jobs that have to complete before it starts", "17,18", pattern=_IDS),
    "inputs_from": field_of("likewise; it gets their result files", "17", pattern=_IDS),
    "array": field_of("a child for each index: 0-99, 0-99:10, 1,5,9-12", "0-99"),
    "array_file": field_of("in place of array: a child for each line of this file", "params.txt"),
    "max_parallel": field_of("most children under way at once", "10", pattern=r"^(\d{1,6})?$"),
    "batch_policy": words_of(
        "fail_fast: the first child that fails ends the others",
        "fail_fast",
        ("wait_all", "fail_fast"),
    ),
    "callback_url": field_of(
        "where its end is posted", "https://portal.example.org/hooks", maxLength=2000
    ),
    "outputs": field_of("patterns of the files that its result is to have", "out/*.csv,best.pdb"),
    "result_files": words_of(
        "all, or changed: without files that are as they were sent", "changed", ("all", "changed")
    ),
    "timeout": _duration("wall time of an attempt; lowers the service's; 0s: none", "30m"),
    "queue_timeout": _duration("longest wait for a start; lowers the service's", "2h"),
    "heartbeat_timeout": _duration("longest silence of an attempt; lowers the service's", "10m"),
    "expires_after": _duration("how long it is kept after its end; lowers the service's", "2d"),
    "retries": field_of("how often a failure is tried again", "3", pattern=r"^(\d{1,6})?$"),
    "retry_delays": field_of("before each retry; the last one repeats", "10s,1m", pattern=_DELAYS),
    "backoff": words_of("in place of retry_delays", "linear", tuple(map(str, BackoffKind))),
    "retry_delay": _duration("the base of backoff", "30s"),
    "max_retry_delay": _duration("the longest delay of backoff", "1h"),
    "retry_on": field_of(
        "reason codes and exit codes that are tried again; in place of the service's",
        "timeout,exit:3",
    ),
    "no_retry_on": field_of("those that are not", "memory_limit"),
    "memory": field_of("lowers the service's", "512MB", pattern=_SIZE),
    "cpus": field_of("lowers the service's", "0.5", pattern=r"^(\d{1,9}(\.\d{1,9})?)?$"),
    "pids": field_of("lowers the service's", "64", pattern=r"^(\d{1,9})?$"),
    "disk": field_of("lowers the service's", "1GiB", pattern=_SIZE),
}
"""Optional ones. Their examples are no defaults: forms stay empty. Patterns show the usual way to
write a value."""
NEEDED: Final = {
    "user_id": field_of("whose job it is", "1", pattern="^[A-Za-z0-9._@-]{1,64}$"),
    "service": field_of("what kind of work it is; GET /api/v1/services lists them", "example"),
}
