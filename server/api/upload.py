"""``POST /upload``: a form straight into a sealed bundle."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.api.codes import FORM
from server.api.form_fields import UPLOAD
from server.domain.access import Area
from server.domain.allowances import DAY
from server.domain.errors import BadField
from server.domain.jobs import Job, UsedTicket
from server.domain.permits import LINK_OF_UPLOAD_S, Link, Shows, Ticket
from server.domain.upload_fields import HEADER, check_field, upload_request
from server.http.addresses import links_by, with_query
from server.http.context import Context
from server.http.forms import check_head, received_form
from server.http.parameter_types import Param
from server.http.paths import JOB_PAGE
from server.http.permitted import TICKET
from server.http.problems import wants_page
from server.http.route import TICKET_PARAMETER, Route, json_answer
from server.stages.accept import QUEUED
from shared import wire
from shared.clock import SECOND
from shared.http.authentication import PRINCIPAL
from shared.http.request_log import UPLOADED_ID
from shared.principals import Scope
from shared.wire import StatusBody

_OF_OTHERS: Final = ("after", "inputs_from")
"""Fields that name other jobs."""
_KEPT: Final = 30 * DAY
"""How long a used ticket is known after its end: uploads that began before it may come slowly."""


async def upload(request: web.Request, context: Context) -> web.StreamResponse:
    """Queue the bundle of a multipart form."""
    principal, ticket = request[PRINCIPAL], request.get(TICKET)
    fixed = {} if ticket is None else {"user_id": ticket.user_id, **ticket.fields}

    def check(name: str, value: str) -> None:
        if fixed.get(name, value) != value:
            message = f"Invalid {name}: the upload ticket says {fixed[name]!r}, not {value[:64]!r}"
            raise BadField(name, "fixed_by_ticket", message)
        if ticket is not None and name in _OF_OTHERS and name not in fixed:
            # A portal may have one user for all its visitors: they must not read by number what
            # other visitors got.
            message = f"Invalid {name}: with an upload ticket only the ticket itself names jobs"
            raise BadField(name, "fixed_by_ticket", message)
        check_field(name, value, context.services, principal)

    fields = {name: value for name, value in request.query.items() if name != TICKET_PARAMETER}
    key = request.headers.get("Idempotency-Key")
    if key is not None:
        fields[HEADER] = key
    most = None if ticket is None else ticket.max_bytes
    given = check_head(request, context, fields, check, most)
    fields = given | fixed
    if ticket is not None:
        await context.accept.check_ticket(ticket, key)
    if "service" in fields and "user_id" in fields:
        asked = upload_request(fields, context.services, principal)
        await context.accept.check_quota(asked, request.content_length or 0)
    async with received_form(request, context, fields, check, most) as form:
        asked = upload_request(form.fields, context.services, principal)
        context.check_not_revoked(request)
        used = None if ticket is None else UsedTicket(ticket.id, ticket.expires_at + _KEPT)
        job, is_new = await context.accept(principal, asked, form.content, form.bundle, used)
    request[UPLOADED_ID] = job.id
    links = None if ticket is None else links_by(request, context, _link(ticket, job, context))
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
    body = StatusBody(id=job.id, status=job.state, message=QUEUED, links=links)
    return json_answer(body, HTTPStatus.CREATED, headers)


def _link(ticket: Ticket, job: Job, context: Context) -> Link:
    """To the job that the ticket became."""
    return Link(
        issued_by=ticket.issued_by,
        job_id=job.id,
        shows=Shows.JOB,
        expires_at=context.clock.now() + round(LINK_OF_UPLOAD_S * SECOND),
        token_id=ticket.token_id,
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
        (*FORM, "result_gone", "idempotency_key_reused", "queue_full", "invalid_idempotency_key"),
        needs=Scope.SUBMIT,
        body=UPLOAD,
        headers={"Idempotency-Key": _IDEMPOTENCY_KEY},
        sends=("Location", "Idempotent-Replayed"),
        fields_in_query=True,
        by_ticket=True,
    ),
)
