"""``POST /api/v1/jobs/bulk``: one action on many jobs."""

from __future__ import annotations

from typing import Annotated, Any, Final

from aiohttp import web
from pydantic import BeforeValidator, Field, field_validator

from server.domain import field_values
from server.domain.access import Area, check_area, scope_of
from server.domain.errors import invalid
from server.domain.field_values import unknown_field
from server.http.context import Context
from server.http.params import FILTER_PARAMS, FILTERS, SparseBody, job_filter, read_body
from server.http.route import Body, Route
from server.stages.bulk import BulkAction
from server.store.pages import Filter
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.http.numbers import whole_number
from shared.http.request_log import TARGET
from shared.wire import BulkAnswer

_MOST: Final = 1_000
_MAX_ID: Final = 2**63 - 1


def _in_a_query(value: Any) -> Any:
    """As a query has it, which is all text."""
    if value is True:
        return "true"
    return str(value) if type(value) is int else value


def _next(value: Any) -> int:
    number = whole_number(str(value), most=_MAX_ID)
    if number is None:
        raise ValueError("should be what the answer before gave as next")
    return number


class BulkBody(SparseBody):
    """What ``POST /api/v1/jobs/bulk`` takes."""

    action: BulkAction
    """What is done with each of the jobs."""
    ids: list[Annotated[int, Field(strict=True, gt=0, le=_MAX_ID)]] | None = Field(
        None, min_length=1, max_length=_MOST
    )
    """The jobs; or a filter."""
    filter: dict[str, Annotated[str, BeforeValidator(_in_a_query)]] = Field(default_factory=dict)
    """The jobs, by the parameters of GET /api/v1/jobs."""
    all: bool = Field(False, strict=True)
    """True: all jobs, without a filter."""
    limit: int = Field(_MOST, strict=True, ge=1, le=_MOST)
    """With a filter: how many jobs at most."""
    cursor: Annotated[int, BeforeValidator(_next)] | None = None
    """What the answer before gave as next."""
    tags: list[str] = Field(default_factory=list)
    """Of tag and untag."""
    service: str | None = None
    """Of move: where to; for operators."""

    @field_validator("tags")
    @classmethod
    def _words(cls, tags: list[str]) -> list[str]:
        found = list(field_values.tags(",".join(tags)))
        if found != list(dict.fromkeys(tags)):
            raise ValueError("a tag is a word, without blanks and commas")
        return found


async def bulk(request: web.Request, context: Context) -> BulkAnswer:
    """Cancel, retry, delete, tag, untag or move many jobs, with a result for each."""
    asked = await read_body(request, BulkBody)
    action, words, principal, following = asked.action, asked.tags, request[PRINCIPAL], None
    if bool(words) is not (action in (BulkAction.TAG, BulkAction.UNTAG)):
        raise invalid("tags", "tag and untag need some, other actions have none")
    if (asked.service is None) is (action is BulkAction.MOVE):
        raise invalid("service", "move needs one, other actions have none")
    if action is BulkAction.MOVE:
        check_area(principal, Area.SERVICES, scope_of(Area.SERVICES, "POST"))
    if asked.service is not None:
        words = [_service(asked.service, context)]
    if asked.ids is None:
        where = _filter(asked, context)
        ids, following = await context.stages.bulk.choose(
            principal, action, where, asked.cursor, asked.limit
        )
    elif {"filter", "cursor", "limit", "all"} & asked.model_fields_set:
        raise invalid("ids", "give ids, or a filter, not both")
    else:
        ids = list(dict.fromkeys(asked.ids))
    done = await context.stages.bulk(principal, action, ids, words)
    request[TARGET] = f"{action} {' '.join(str(one.id) for one in done)}"
    return BulkAnswer(
        items=done, more=following is not None, next=None if following is None else str(following)
    )


def _service(name: str, context: Context) -> str:
    """Where jobs are moved to."""
    service = context.core.services.get(name)
    if service is None or service.retired:
        raise invalid("service", f"{name[:64]!r} is none that takes jobs")
    return name


def _filter(asked: BulkBody, context: Context) -> Filter:
    for name in asked.filter:
        if name not in FILTERS:
            raise unknown_field(name, FILTERS)
    if bool(asked.filter) is asked.all:
        raise invalid("filter", 'give ids, or choose jobs by a filter, or say "all": true')
    return job_filter(asked.filter, context.core.clock.now())


_BODY: Final = Body(
    "application/json",
    {
        "type": "object",
        "required": ["action"],
        "properties": {
            "action": {"type": "string", "enum": list(BulkAction)},
            "ids": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": _MAX_ID},
                "minItems": 1,
                "maxItems": _MOST,
            },
            "filter": {
                "type": "object",
                "properties": {
                    name: {"description": param.text, **param.schema}
                    for name, param in FILTER_PARAMS.items()
                },
                "additionalProperties": False,
            },
            "all": {"type": "boolean"},
            "limit": {"type": "integer", "minimum": 1, "maximum": _MOST, "default": _MOST},
            "cursor": {"type": ["string", "null"], "pattern": r"^\d{1,18}$"},
            "tags": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 64},
                "maxItems": field_values.MAX_TAGS,
            },
            "service": {"type": "string"},
        },
        "additionalProperties": False,
    },
    {"action": "cancel", "filter": {"user": "ada", "tag": "batch-7"}},
    BulkBody,
)


ROUTES: Final = (
    Route("POST", "/api/v1/jobs/bulk", Area.JOBS, bulk, {200: wire.BulkAnswer}, body=_BODY),
)
