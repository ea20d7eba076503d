"""The fields of upload forms, as ``/openapi.json`` describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from server.domain.schedules import NOT_REPEATED
from server.http.form_texts import FIELDS, NEEDED, field_of
from server.http.parameter_types import Param
from server.http.route import Body

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


UPLOAD: Final = _form(NEEDED, FIELDS)
SCHEDULE: Final = _form(
    {
        **NEEDED,
        "name": field_of(
            "a name, another one for each schedule of a user", "nightly", maxLength=200
        ),
        "cron": field_of(
            "minute, hour, day of the month, month, day of the week", "30 2 * * MON-FRI"
        ),
    },
    {name: one for name, one in FIELDS.items() if name not in NOT_REPEATED}
    | {"time_zone": field_of("where the times of cron are", "Europe/Berlin")},
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
