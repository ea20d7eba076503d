"""Uploads, and the fields of their forms as ``/openapi.json`` describes them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area
from server.domain.jobs import Job
from server.domain.permits import LINK_OF_UPLOAD_S, Link, Shows, Ticket
from server.domain.schedules import NOT_REPEATED
from server.http.context import Context
from server.http.params import Param
from server.http.permits import TICKET, links_by, with_query
from server.http.problems import wants_page
from server.http.route import JOB_PAGE, Body, Route, json_answer
from server.http.uploads import FIELDS, NEEDED, accept_upload, field_of
from server.stages.accept import QUEUED
from shared import wire
from shared.clock import SECOND
from shared.principals import Scope
from shared.wire import StatusBody

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


async def upload(request: web.Request, context: Context) -> web.StreamResponse:
    """Queue the bundle of a multipart form."""
    ticket = request.get(TICKET)
    job, is_new = await accept_upload(request, context)
    links = None
    # A repeat by another ticket finds the job by its Idempotency-Key: it is not its to show.
    if ticket is not None and (is_new or await context.jobs.ticket_used(ticket.id)):
        links = links_by(request, context, _link(ticket, job, context))
    if wants_page(request):
        # A browser that posted a plain form: on to the job, so that a reload does not post again.
        there = f"{context.url_prefix}{JOB_PAGE.replace('{id}', str(job.id))}"
        if ticket is not None and ticket.return_to is not None:
            there = with_query(ticket.return_to, job=str(job.id), status=job.state)
        elif links is not None:
            there = links.page
        return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": there})
    headers = {"Location": f"{context.url_prefix}/api/v1/jobs/{job.id}"}
    if not is_new:
        headers["Idempotent-Replayed"] = "true"
    warnings = list(job.upload_warnings) or None
    body = StatusBody(id=job.id, status=job.state, message=QUEUED, warnings=warnings, links=links)
    return json_answer(body, HTTPStatus.CREATED, headers)


def _link(ticket: Ticket, job: Job, context: Context) -> Link:
    """To the job that the ticket became."""
    return Link(
        issued_by=ticket.issued_by,
        job_id=job.id,
        shows=Shows.JOB,
        expires_at=context.clock.now() + round(LINK_OF_UPLOAD_S * SECOND),
        token_id=ticket.token_id,
        issuer=ticket.issuer,
    )


_IDEMPOTENCY_KEY: Final = Param(
    "an upload that is repeated with the same key makes no second job",
    {"type": "string", "maxLength": 255, "pattern": r"^[\x21-\x7e]*$"},
    "",
)

ROUTES: Final = (
    Route(
        "POST",
        "/upload",
        Area.JOBS,
        upload,
        {201: wire.StatusBody, 303: None},
        needs=Scope.SUBMIT,
        body=UPLOAD,
        headers={"Idempotency-Key": _IDEMPOTENCY_KEY},
        sends=("Location", "Idempotent-Replayed"),
        fields_in_query=True,
        by_ticket=True,
    ),
)
