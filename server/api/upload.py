"""``POST /upload``: a form straight into a sealed bundle."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.api.form_fields import UPLOAD
from server.domain.access import Area
from server.domain.jobs import Job
from server.domain.permits import LINK_OF_UPLOAD_S, Link, Shows, Ticket
from server.http.addresses import links_by, with_query
from server.http.context import Context
from server.http.parameter_types import Param
from server.http.paths import JOB_PAGE
from server.http.permitted import TICKET
from server.http.problems import wants_page
from server.http.route import Route, json_answer
from server.http.uploads import accept_upload
from server.stages.accept import QUEUED
from shared import wire
from shared.clock import SECOND
from shared.principals import Scope
from shared.wire import StatusBody


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
