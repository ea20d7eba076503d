"""Parameters of requests, and bodies in JSON: how they are described, and how they are read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from server.domain.errors import BadField, invalid
from server.domain.field_values import moment, unknown_field
from server.http.problems import Refusal
from server.store.pages import Filter
from shared.clock import Micros
from shared.http.numbers import whole_number
from shared.http.request_body import send_continue
from shared.wire import JobState, Reason

MAX_WAIT_S: Final = 120.0
MAX_ID: Final = 2**63 - 1
"""Of jobs and everything else that the database numbers."""


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a path or query, or a header of a request.

    Attributes:
        text: what it means.
        schema: JSON schema of its value.
        example: None: it has none, and stays empty where a page asks for it.
    """

    text: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    example: Any = None


def whole(text: str, least: int = 0, most: int = MAX_ID, default: int | None = None) -> Param:
    """A whole number."""
    return Param(text, {"type": "integer", "minimum": least, "maximum": most} | _default(default))


def seconds(text: str) -> Param:
    """How long to wait; :func:`server.http.params.seconds_param` reads it."""
    more = f"; more than {MAX_WAIT_S:.0f} counts as {MAX_WAIT_S:.0f}"
    return Param(text + more, {"type": "number", "minimum": 0, "default": 0})


def choice(text: str, values: Iterable[str], default: str | None = None) -> Param:
    """One of a few words."""
    return Param(text, {"type": "string", "enum": [str(one) for one in values]} | _default(default))


def flag(text: str) -> Param:
    """Yes or no; :func:`server.http.params.flag_param` reads it."""
    return choice(text, ("1", "true", "0", "false"))


def word(text: str, most: int, pattern: str | None = None, example: str | None = None) -> Param:
    """Text of at most so many characters."""
    schema: dict[str, Any] = {"type": "string", "maxLength": most}
    return Param(text, schema | ({} if pattern is None else {"pattern": pattern}), example)


def _default(value: Any) -> dict[str, Any]:
    return {} if value is None else {"default": value}


MAX_MESSAGE: Final = 200
_MOST_VALUES: Final = 5_000
"""In a body of JSON."""
_MAX_LENGTH: Final = 32
"""Characters of a number of seconds."""


def job_id(request: web.Request) -> int:
    """The job that the path names.

    Raises:
        Refusal: no number, or none that a job can have.
    """
    text = request.match_info["id"]
    number = whole_number(text, most=MAX_ID)
    if number is None:
        shown = text if len(text) <= 20 else f"{text[:20]}…"
        raise Refusal(404, "job_not_found", f"{shown!r} is not the number of a job")
    return number


def seconds_param(request: web.Request, name: str) -> float:
    """A query parameter in seconds, at most MAX_WAIT_S; 0 if missing."""
    text = request.query.get(name, "0")
    try:
        value = float(text.removesuffix("s")) if len(text) <= _MAX_LENGTH else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf or "_" in text:  # also refuses nan
        raise BadField(name, f"invalid_{name}", f"{name} should be seconds, not {text[:32]!r}")
    return min(value, MAX_WAIT_S)


def message_param(request: web.Request, default: str) -> str:
    """An operator's word for people, on one line."""
    return message_of(request.query.get("message", ""), default)


def message_of(text: str, default: str) -> str:
    """As :func:`message_param`, of a form."""
    text = text.strip() or default
    if len(text) > MAX_MESSAGE or not text.isprintable():
        why = f"message should be at most {MAX_MESSAGE} characters on one line"
        raise BadField("message", "invalid_message", why)
    return text


async def json_body(request: web.Request, most: int) -> dict[str, Any]:
    """The body, which is to be a JSON object of ``most`` bytes at most.

    Raises:
        Refusal: it is larger, or no JSON object. Nothing of it is repeated: it may hold secrets.
    """
    await send_continue(request)
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > most:
            raise Refusal(413, "body_too_large", f"the body has more than {most} bytes")
    try:
        found = json.loads(body, object_pairs_hook=_once)
        # No half characters, and no numbers beyond all bounds: neither can be stored.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
        _count(found)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        why = (
            "the body should be a JSON object, with each key once, text in whole characters, "
            f"and at most {_MOST_VALUES} values"
        )
        raise Refusal(400, "invalid_json", why)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _count(found: Any) -> None:
    """Raises ValueError for more values than any route takes: to say what is wrong with each would
    take seconds."""
    seen, waiting = 0, [found]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            seen += len(one)
            if seen > _MOST_VALUES:
                raise ValueError("too many values")
            waiting.extend(one.values() if isinstance(one, dict) else one)


def int_param(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """A query parameter that is a whole number."""
    text = request.query.get(name, str(default))
    number = whole_number(text, least, most)
    if number is None:
        raise BadField(
            name, f"invalid_{name}", f"{name} should be {least} to {most}, not {text[:32]!r}"
        )
    return number


def flag_param(request: web.Request, name: str) -> bool:
    """A query parameter that is yes or no; no if missing."""
    text = request.query.get(name, "0")
    if text not in ("1", "true", "0", "false"):
        raise BadField(name, f"invalid_{name}", f"{name} should be 1 or 0, not {text[:32]!r}")
    return text in ("1", "true")


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
                raise invalid(name, str(problem)) from None
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
    "after": ("after", _number),
}
"""Parameter -> field of the filter, and what reads it; None: a time."""


_STATES: Final = (*JobState, "Killed")
"""The last one is what job-orchestrator calls Cancelled."""
_MOMENT: Final = "a time with its offset from UTC, or how long ago, as in 2h"

WAIT: Final = {"wait": seconds("hold the request until the job has ended, at most so many seconds")}
CURSOR: Final = whole("where the page begins: what the page before gave as next", 0, MAX_ID)


def paging(default: int, most: int) -> dict[str, Param]:
    """Of a list."""
    return {"limit": whole("items of a page", 1, most, default), "cursor": CURSOR}


USER: Final = word("only of this user", MAX_TEXT)
SERVICE: Final = word("only of this service", MAX_TEXT)
FILTER_PARAMS: Final = {
    "user": USER,
    "service": SERVICE,
    "state": choice("only in this state", _STATES),
    "tag": word("only with this tag", MAX_TEXT),
    "name": word("only with this name", MAX_TEXT),
    "text": word("only with this number, or with this in the name, a tag or the message", MAX_TEXT),
    "reason": choice("only failed for this reason", Reason),
    "dead_letter": choice("only dead letters", ("true", "1")),
    "top_level": choice("only jobs without a parent: no children of batches", ("true", "1")),
    "batch": choice("only parents of batches: jobs with children", ("true", "1")),
    "since": Param(f"only uploaded then or later: {_MOMENT}", example="2h"),
    "until": Param(f"only uploaded before: {_MOMENT}", example="2h"),
    "parent": whole("only children of this job"),
    "schedule": whole("only made by this schedule"),
    "after": whole("only those that begin after this job, or take its files"),
}
"""Of lists of jobs; :func:`job_filter` reads them."""


_MAX_BODY: Final = 64 << 10


class JsonBody(BaseModel):
    """Base of what a route takes: every key that is not known is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SparseBody(JsonBody):
    """One of which ``null`` is as good as nothing."""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, given: dict[str, Any]) -> dict[str, Any]:
        known = cls.model_fields
        return {name: one for name, one in given.items() if one is not None or name not in known}


B = TypeVar("B", bound=JsonBody)


async def read_body(request: web.Request, model: type[B]) -> B:
    """The body of a request; an empty one is ``{}``.

    Raises:
        Refusal: no JSON object, or a very large one.
        BadField: the first key that is wrong; nothing of its value is repeated.
    """
    return checked(await json_body(request, _MAX_BODY) if request.body_exists else {}, model)


def checked(given: Mapping[str, Any], model: type[B]) -> B:
    """What was given, as the model has it.

    Raises:
        BadField: as :func:`read_body`.
    """
    try:
        return model.model_validate(given)
    except ValidationError as problem:
        raise _bad_field(problem, model) from None


def _bad_field(problem: ValidationError, model: type[JsonBody]) -> BadField:
    found = problem.errors(include_url=False, include_input=False)
    # A key that is not known may be the misspelt name of one that is missing.
    wrong = min(found, key=lambda one: one["type"] != "extra_forbidden")
    field = str(wrong["loc"][0]) if wrong["loc"] else ""
    match wrong["type"]:
        case "extra_forbidden":
            return unknown_field(field, model.model_fields)
        case "missing":
            return BadField(field, f"missing_{field}", f"Missing {field} field")
    inside = "".join(f"{one[:64]}: " for one in wrong["loc"][1:] if isinstance(one, str))
    why = wrong["msg"].removeprefix("Value error, ")
    return invalid(field, f"{inside}{why[:1].lower()}{why[1:]}")
