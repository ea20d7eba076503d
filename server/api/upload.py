"""``POST /upload``: a form straight into a sealed bundle."""

from __future__ import annotations

import dataclasses
from http import HTTPStatus

from aiohttp import web

from server.api.context import Context
from server.api.problems import Refusal
from server.api.route import json_answer
from server.domain.errors import BundleTooLarge
from server.domain.upload_fields import HEADER, check_field, given, upload_request
from shared.http.authentication import PRINCIPAL
from shared.http.middleware import UPLOADED_ID
from shared.http.request_body import send_continue
from shared.multipart.limits import FormRefused
from shared.multipart.receive import receive
from shared.multipart.sinks import BundleSink, Sink
from shared.units.sizes import say_size
from shared.wire import StatusBody


async def upload(request: web.Request, context: Context) -> web.StreamResponse:
    """Queue the bundle of a multipart form."""
    principal = request[PRINCIPAL]
    fields = await _refuse_early(request, context)
    with (
        context.upload_limits.admit(request.content) as in_flight,
        context.scratch.file() as content,
    ):
        if "user_id" in fields:
            in_flight.count_for(fields["user_id"])

        def on_field(name: str, value: str, _: dict[str, str]) -> None:
            check_field(name, value, context.services, principal)
            if name == "user_id":
                in_flight.count_for(value)

        too_large: BundleTooLarge | None = None

        def on_first_file(so_far: dict[str, str]) -> Sink | None:
            # What is known to be too large for its job need not be read to the end.
            nonlocal too_large
            too_large = context.accept.too_large(fields | so_far)
            if too_large is None or too_large.most >= context.form_limits.max_bytes:
                too_large = None
                return None
            limits = dataclasses.replace(context.form_limits, max_bytes=too_large.most)
            return BundleSink(content.path, limits, "filename", reserve=content.reserve)

        await send_continue(request)
        try:
            received = await receive(
                in_flight.body(),
                request.headers.get("Content-Type", ""),
                request.content_length,
                staging=content.path,
                limits=context.form_limits,
                naming="filename",
                on_field=on_field,
                on_first_file=on_first_file,
                reserve=content.reserve,
                threads=context.upload_threads.for_upload(fields.get("user_id", "")),
            )
        except FormRefused as problem:
            if problem.code == "too_large" and too_large is not None:
                raise too_large from None
            raise
        asked = upload_request(fields | received.fields, context.services, principal)
        job, is_new = await context.accept(principal, asked, content, received.bundle)
    request[UPLOADED_ID] = job.id
    headers = {"Location": f"{context.url_prefix}/api/v1/jobs/{job.id}"}
    if "text/html" in request.headers.get("Accept", ""):
        # A browser that posted a plain form: on to the job, so that a reload does not post again.
        return web.Response(status=HTTPStatus.SEE_OTHER, headers=headers)
    if not is_new:
        headers["Idempotent-Replayed"] = "true"
    body = StatusBody(id=job.id, status=job.state, message="Job successfully uploaded")
    return json_answer(body, HTTPStatus.CREATED, headers)


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
    fields = dict(request.query)
    key = request.headers.get("Idempotency-Key")
    if key is not None:
        fields[HEADER] = key
    for name, value in fields.items():
        check_field(name, value, context.services, request[PRINCIPAL])
    length = request.content_length or 0
    if length > context.form_limits.max_bytes:
        raise Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "upload_too_large",
            f"the upload is {say_size(length)}, the most this server takes is "
            f"{say_size(context.form_limits.max_bytes)}",
        )
    if length > context.scratch.available_bytes():
        free = say_size(context.scratch.free_bytes())
        raise Refusal(
            HTTPStatus.INSUFFICIENT_STORAGE,
            "disk_full",
            f"the server's disk has {free} free, which is too little for this upload",
            retry_after_s=60,
        )
    if "service" in fields and "user_id" in fields:
        asked = upload_request(fields, context.services, request[PRINCIPAL])
        await context.accept.check_quota(asked, length)
    return given(fields)
