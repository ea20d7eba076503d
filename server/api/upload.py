"""``POST /upload``: a form straight into a sealed bundle."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from server.api.context import CONTEXT, Context
from server.api.problems import Refusal
from shared.http.bodies import go_on
from shared.http.front import JOB
from shared.limits import FIELDS
from shared.multipart import receive
from shared.sizes import say_size
from shared.wire import StatusBody

_EARLY = ("service", "user_id", "name", "tags", "timeout", *FIELDS)
"""Fields that may be given in the query too, where they can be refused before the body is read."""


async def upload(request: web.Request) -> web.StreamResponse:
    """Queue the bundle of a multipart form."""
    context = request.app[CONTEXT]
    fields = await _refuse_early(request, context)
    await go_on(request)

    def on_field(name: str, value: str, _: dict[str, str]) -> None:
        context.accept.check_field(name, value)

    with context.files.staging() as staged:
        received = await receive(
            request.content.iter_any(),
            request.headers.get("Content-Type", ""),
            request.content_length,
            staging=staged,
            limits=context.form_limits,
            naming="filename",
            on_field=on_field,
        )
        wish = context.accept.wish(fields | received.fields)
        job, fresh = await context.accept(wish, staged, received.bundle)
    request[JOB] = job.id
    headers = {"Location": f"{context.url_prefix}/api/v1/jobs/{job.id}"}
    if "text/html" in request.headers.get("Accept", ""):
        # A browser that posted a plain form: on to the job, so that a reload does not post again.
        return web.Response(status=HTTPStatus.SEE_OTHER, headers=headers)
    if not fresh:
        headers["Idempotent-Replayed"] = "true"
    body = StatusBody(id=job.id, status=job.state, message="Job successfully uploaded")
    return web.Response(
        status=HTTPStatus.CREATED,
        text=body.model_dump_json(exclude_none=True),
        content_type="application/json",
        headers=headers,
    )


async def _refuse_early(request: web.Request, context: Context) -> dict[str, str]:
    """Check what is known before the body; the fields that the head gives."""
    # Not request.content_type: that costs a mail parser for each upload.
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise Refusal(
            HTTPStatus.BAD_REQUEST,
            "not_multipart",
            f"Multipart error: the upload must be multipart/form-data, not {kind or 'nothing'}",
        )
    fields = {name: request.query[name] for name in _EARLY if name in request.query}
    key = request.headers.get("Idempotency-Key")
    if key is not None:
        fields["idempotency_key"] = key
    for name, value in fields.items():
        context.accept.check_field(name, value)
    length = request.content_length or 0
    if length > context.form_limits.max_bytes:
        raise Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "upload_too_large",
            f"the upload is {say_size(length)}, the most this server takes is "
            f"{say_size(context.form_limits.max_bytes)}",
        )
    free = context.files.free_bytes()
    if length + context.min_free > free:
        raise Refusal(
            HTTPStatus.INSUFFICIENT_STORAGE,
            "disk_full",
            f"the server's disk has {say_size(free)} free, which is too little for this upload",
            retry_after_s=60,
        )
    if "service" in fields and "user_id" in fields:
        await context.accept.check_room(context.accept.wish(fields))
    return fields
