"""``POST /api/v1/jobs/bulk``: one action on many jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from server.domain import field_values
from server.domain.access import Area, check_area, scope_of
from server.domain.errors import BadField, invalid
from server.http.context import Context
from server.http.params import FILTER_PARAMS, FILTERS, job_filter, json_body
from server.http.route import Body, Route
from server.stages.bulk import BulkAction
from server.store.pages import Filter
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.http.numbers import whole_number
from shared.http.request_log import TARGET
from shared.wire import BulkAnswer, BulkItem

_MOST: Final = 1_000
_MAX_BODY: Final = 64 << 10
_MAX_ID: Final = 2**63 - 1
_KEYS: Final = ("action", "ids", "filter", "all", "cursor", "limit", "tags", "service")


async def bulk(request: web.Request, context: Context) -> BulkAnswer:
    """Cancel, retry, delete, tag, untag or move many jobs, with a result for each."""
    asked = await json_body(request, _MAX_BODY)
    _only(asked, _KEYS)
    action, words = _action(asked), _tags(asked)
    principal, following = request[PRINCIPAL], None
    if action is BulkAction.MOVE:
        check_area(principal, Area.SERVICES, scope_of(Area.SERVICES, "POST"))
        words = (_service(asked, context),)
    elif "service" in asked:
        raise invalid("service", "move needs one, other actions have none")
    if "ids" in asked:
        if {"filter", "cursor", "limit", "all"} & asked.keys():
            raise invalid("ids", "give ids, or a filter, not both")
        ids = _ids(asked["ids"])
    else:
        where = _filter(asked, context)
        limit = _whole(asked, "limit", _MOST, _MOST)
        before = None
        if asked.get("cursor") is not None:
            before = whole_number(str(asked["cursor"]), most=_MAX_ID)
            if before is None:
                raise invalid("cursor", "should be what the answer before gave as next")
        ids, following = await context.bulk.choose(principal, action, where, before, limit)
    done = await context.bulk(principal, action, ids, words)
    request[TARGET] = f"{action} {' '.join(str(one.job_id) for one in done)}"
    return BulkAnswer(
        items=[
            BulkItem(id=one.job_id, ok=one.ok, code=one.code, message=one.message) for one in done
        ],
        more=following is not None,
        next=None if following is None else str(following),
    )


def _only(asked: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in asked:
        if name not in known:
            message = f"Unknown field {name[:64]!r}; known are {', '.join(known)}"
            raise BadField(name[:64], "unknown_field", message)


def _action(asked: Mapping[str, Any]) -> BulkAction:
    try:
        return BulkAction(str(asked.get("action")))
    except ValueError:
        shown = str(asked.get("action"))[:32]
        raise invalid("action", f"{shown!r} is none of {', '.join(BulkAction)}") from None


def _tags(asked: Mapping[str, Any]) -> tuple[str, ...]:
    tags = asked.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise invalid("tags", 'should be a list of words, as in ["a", "b"]')
    is_about_tags = asked["action"] in (BulkAction.TAG, BulkAction.UNTAG)
    if bool(tags) is not is_about_tags:
        raise invalid("tags", "tag and untag need some, other actions have none")
    try:
        found: tuple[str, ...] = field_values.tags(",".join(tags))
    except ValueError as problem:
        raise invalid("tags", str(problem)) from None
    if list(found) != list(dict.fromkeys(tags)):
        raise invalid("tags", "a tag is a word, without blanks and commas")
    return found


def _service(asked: Mapping[str, Any], context: Context) -> str:
    """Where jobs are moved to."""
    service = context.services.get(str(asked.get("service")))
    if service is None or service.retired:
        raise invalid("service", f"{str(asked.get('service'))[:64]!r} is none that takes jobs")
    return service.name


def _ids(ids: Any) -> list[int]:
    if not isinstance(ids, list) or not 1 <= len(ids) <= _MOST:
        raise invalid("ids", f"should be a list of 1 to {_MOST} numbers of jobs")
    for one in ids:
        if type(one) is not int or not 0 < one <= _MAX_ID:
            raise invalid("ids", f"{str(one)[:32]!r} is not the number of a job")
    return list(dict.fromkeys(ids))


def _whole(asked: Mapping[str, Any], name: str, default: int, most: int) -> int:
    number = asked.get(name, default)
    if type(number) is not int or not 1 <= number <= most:
        raise invalid(name, f"should be 1 to {most}, not {str(number)[:32]!r}")
    return number


def _filter(asked: Mapping[str, Any], context: Context) -> Filter:
    given = asked.get("filter", {})
    if not isinstance(given, dict):
        raise invalid("filter", 'should be an object, as in {"user": "ada", "tag": "a"}')
    _only(given, tuple(FILTERS))
    texts = {
        name: ("true" if value is True else str(value) if type(value) is int else value)
        for name, value in given.items()
    }
    for name, text in texts.items():
        if not isinstance(text, str):
            raise invalid(name, f"{str(text)[:32]!r} is not a text")
    if bool(given) is (asked.get("all") is True):
        raise invalid("filter", 'give ids, or choose jobs by a filter, or say "all": true')
    return job_filter(texts, context.clock.now())


_BODY: Final = Body(
    "application/json",
    {
        "type": "object",
        "required": ["action"],
        "properties": {
            "action": {
                "type": "string",
                "enum": list(BulkAction),
                "description": "what is done with each of the jobs",
            },
            "ids": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": _MAX_ID},
                "minItems": 1,
                "maxItems": _MOST,
                "description": "the jobs; or a filter",
            },
            "filter": {
                "type": "object",
                "properties": {
                    name: {"description": param.text, **param.schema}
                    for name, param in FILTER_PARAMS.items()
                },
                "additionalProperties": False,
                "description": "the jobs, by the parameters of GET /api/v1/jobs",
            },
            "all": {"type": "boolean", "description": "true: all jobs, without a filter"},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": _MOST,
                "default": _MOST,
                "description": "with a filter: how many jobs at most",
            },
            "cursor": {
                "type": ["string", "null"],
                "pattern": r"^\d{1,18}$",
                "description": "what the answer before gave as next",
            },
            "tags": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 64},
                "maxItems": field_values.MAX_TAGS,
                "description": "of tag and untag",
            },
            "service": {"type": "string", "description": "of move: where to; for operators"},
        },
        "additionalProperties": False,
    },
    {"action": "cancel", "filter": {"user": "ada", "tag": "batch-7"}},
)


ROUTES: Final = (
    Route("POST", "/api/v1/jobs/bulk", Area.JOBS, bulk, {200: wire.BulkAnswer}, body=_BODY),
)
