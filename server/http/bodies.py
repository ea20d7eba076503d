"""Bodies in JSON, checked against a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from server.domain.errors import BadField
from server.domain.field_values import hint
from server.http.params import json_body

_MAX_BODY: Final = 64 << 10


class JsonBody(BaseModel):
    """Base of what a route takes: every key that is not known is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
            message = f"Unknown field {field[:64]!r}; {hint(field, model.model_fields)}"
            return BadField(field[:64], "unknown_field", message)
        case "missing":
            return BadField(field, f"missing_{field}", f"Missing {field} field")
    why = wrong["msg"].removeprefix("Value error, ")
    return BadField(field, f"invalid_{field}", f"Invalid {field}: {why[:1].lower()}{why[1:]}")
