"""``POST /upload``: a form straight into a sealed bundle."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.api.context import Context
from server.api.forms import check_head, received_form
from server.api.route import Route, json_answer
from server.domain.access import Area
from server.domain.upload_fields import HEADER, check_field, upload_request
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.http.middleware import UPLOADED_ID
from shared.principals import Scope
from shared.wire import StatusBody


async def upload(request: web.Request, context: Context) -> web.StreamResponse:
    """Queue the bundle of a multipart form."""
    principal = request[PRINCIPAL]

    def check(name: str, value: str) -> None:
        check_field(name, value, context.services, principal)

    fields = dict(request.query)
    key = request.headers.get("Idempotency-Key")
    if key is not None:
        fields[HEADER] = key
    fields = check_head(request, context, fields, check)
    if "service" in fields and "user_id" in fields:
        asked = upload_request(fields, context.services, principal)
        await context.accept.check_quota(asked, request.content_length or 0)
    async with received_form(request, context, fields, check) as form:
        asked = upload_request(form.fields, context.services, principal)
        job, is_new = await context.accept(principal, asked, form.content, form.bundle)
    request[UPLOADED_ID] = job.id
    headers = {"Location": f"{context.url_prefix}/api/v1/jobs/{job.id}"}
    if "text/html" in request.headers.get("Accept", ""):
        # A browser that posted a plain form: on to the job, so that a reload does not post again.
        return web.Response(status=HTTPStatus.SEE_OTHER, headers=headers)
    if not is_new:
        headers["Idempotent-Replayed"] = "true"
    body = StatusBody(id=job.id, status=job.state, message="Job successfully uploaded")
    return json_answer(body, HTTPStatus.CREATED, headers)


ROUTES: Final = (
    Route(
        "POST",
        "/upload",
        Area.JOBS,
        upload,
        {201: wire.StatusBody, 303: None},
        (400, 413, 415, 422, 429, 503, 507),
        needs=Scope.SUBMIT,
        fields_in_query=True,
    ),
)
