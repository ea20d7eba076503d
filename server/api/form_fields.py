"""The fields of upload forms, as ``/openapi.json`` describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from server.domain.retry_policy import BackoffKind
from server.domain.schedules import NOT_REPEATED
from server.http.parameter_types import Param
from server.http.route import Body
from shared.wire import Missed, Overlap


def _field(text: str, such: str, **more: Any) -> Param:
    return Param(text, {"type": "string", **more}, such)


def _duration(text: str, such: str) -> Param:
    return _field(text, such, pattern=r"^(\d{1,3}[wdhms])?$")


def _words(text: str, such: str, values: tuple[str, ...]) -> Param:
    return _field(text, such, enum=["", *values])


_SIZE: Final = r"^([1-9]\d{0,3}[MG]i?B)?$"
_IDS: Final = r"^([1-9]\d{0,8}(,[1-9]\d{0,8})*)?$"
_DELAYS: Final = r"^(\d{1,3}[dhms](,\d{1,3}[dhms])*)?$"
_TAGS: Final = r"^([A-Za-z0-9_.-]{1,64}(,[A-Za-z0-9_.-]{1,64})*)?$"

FIELDS: Final[Mapping[str, Param]] = {
    "name": _field("a name for people", "first try", maxLength=200),
    "tags": _field("separated by commas", "batch-7,test", pattern=_TAGS),
    "priority": _field(
        "-100 to 100, the higher comes first among the user's own jobs",
        "10",
        pattern=r"^([+-]?(\d{1,2}|100))?$",
    ),
    "not_before": _field("when it may start: a time with its offset from UTC, or in 2h", "in 2h"),
    "meta": _field("a JSON object that is kept with the job, up to 16 KiB", '{"sample": 7}'),
    "after": _field("jobs that have to complete before it starts", "17,18", pattern=_IDS),
    "inputs_from": _field("likewise; it gets their result files", "17", pattern=_IDS),
    "array": _field("a child for each index: 0-99, 0-99:10, 1,5,9-12", "0-99"),
    "array_file": _field("in place of array: a child for each line of this file", "params.txt"),
    "max_parallel": _field("most children under way at once", "10", pattern=r"^(\d{1,6})?$"),
    "batch_policy": _words(
        "fail_fast: the first child that fails ends the others",
        "fail_fast",
        ("wait_all", "fail_fast"),
    ),
    "callback_url": _field(
        "where its end is posted", "https://portal.example.org/hooks", maxLength=2000
    ),
    "outputs": _field("patterns of the files that its result is to have", "out/*.csv,best.pdb"),
    "result_files": _words(
        "all, or changed: without files that are as they were sent", "changed", ("all", "changed")
    ),
    "timeout": _duration("wall time of an attempt; lowers the service's", "30m"),
    "queue_timeout": _duration("longest wait for a start; lowers the service's", "2h"),
    "heartbeat_timeout": _duration("longest silence of an attempt; lowers the service's", "10m"),
    "expires_after": _duration("how long it is kept after its end; lowers the service's", "2d"),
    "retries": _field("how often a failure is tried again", "3", pattern=r"^(\d{1,6})?$"),
    "retry_delays": _field("before each retry; the last one repeats", "10s,1m", pattern=_DELAYS),
    "backoff": _words("in place of retry_delays", "linear", tuple(map(str, BackoffKind))),
    "retry_delay": _duration("the base of backoff", "30s"),
    "max_retry_delay": _duration("the longest delay of backoff", "1h"),
    "retry_on": _field("reason codes and exit codes that are tried again", "timeout,exit:3"),
    "no_retry_on": _field("those that are not", "memory_limit"),
    "memory": _field("lowers the service's", "512MB", pattern=_SIZE),
    "cpus": _field("lowers the service's", "0.5", pattern=r"^(\d{1,9}(\.\d{1,9})?)?$"),
    "pids": _field("lowers the service's", "64", pattern=r"^(\d{1,9})?$"),
    "disk": _field("lowers the service's", "1GiB", pattern=_SIZE),
}
"""Optional ones. Their examples are no defaults: forms stay empty. Patterns show the usual way to
write a value."""
_OVERLAPS: Final[tuple[Overlap, ...]] = ("skip_if_running", "queue", "replace")
_MISSED: Final[tuple[Missed, ...]] = ("skip", "run_once")
_TIMES: Final = {
    "time_zone": _field("where the times of cron are", "Europe/Berlin"),
    "overlap": _words("at a time when a job of it has not ended", "queue", _OVERLAPS),
    "missed": _words("with times at which no server was running", "run_once", _MISSED),
}
_NEEDED: Final = {
    "user_id": _field("whose job it is", "1", pattern="^[A-Za-z0-9._@-]{1,64}$"),
    "service": _field("what kind of work it is; GET /api/v1/services lists them", "example"),
}
_FILES: Final = {
    "file": {
        "type": "array",
        # Without an example, Swagger's page sends "string" while no file is chosen.
        "items": {"type": "string", "format": "binary", "example": ""},
        "minItems": 1,
        "description": "the bundle's files, run.sh among them; names may hold /",
    },
    "bundle": {
        "type": "string",
        "format": "binary",
        "description": "instead of files: one .zip, .tar or .tar.gz",
    },
}


def _form(needed: Mapping[str, Param], optional: Mapping[str, Param]) -> Body:
    properties: dict[str, Any] = {
        name: {**one.schema, "description": one.text, "example": one.example}
        for name, one in needed.items()
    }
    for name, one in optional.items():
        # Swagger's form would send "string" in a field that has no example.
        text = f"{one.text}, such as {one.example}"
        properties.setdefault(name, {**one.schema, "description": text, "example": ""})
    schema = {
        "type": "object",
        "required": list(needed),
        "anyOf": [{"required": [name]} for name in _FILES],
        "properties": properties | _FILES,
        "additionalProperties": False,
    }
    return Body("multipart/form-data", schema)


UPLOAD: Final = _form(_NEEDED, FIELDS)
SCHEDULE: Final = _form(
    {
        **_NEEDED,
        "name": _field("a name, another one for each schedule of a user", "nightly", maxLength=200),
        "cron": _field(
            "minute, hour, day of the month, month, day of the week", "30 2 * * MON-FRI"
        ),
    },
    {name: one for name, one in FIELDS.items() if name not in NOT_REPEATED} | _TIMES,
)


def in_query(form: Body) -> dict[str, Any]:
    """The fields of a form as one parameter: each of them may stand in the query instead."""
    fields = {
        name: schema for name, schema in form.schema["properties"].items() if name not in _FILES
    }
    return {
        "name": "fields",
        "in": "query",
        "description": "Any field of the form, as a parameter of its own (service=example): what "
        "is given here is refused before the body is sent, where it is wrong.",
        "style": "form",
        "explode": True,
        "schema": {"type": "object", "properties": fields, "additionalProperties": False},
        "example": {},
    }
