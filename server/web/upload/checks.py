"""What the page's script asks before it sends anything."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.domain.access import user_asked_for, visible
from server.domain.errors import BadField, BundleTooLarge, FerrymanError, NotAllowed
from server.domain.upload_fields import HEADER, UploadRequest, check_field, given, upload_request
from server.http.context import Context
from server.http.params import json_body
from server.http.paths import JOB_PAGE
from server.http.problems import Refusal
from server.stages.read import job_of_key
from server.web.site.site import Site
from shared.http.authentication import PRINCIPAL
from shared.principals import LOCAL
from shared.units.sizes import say_size

_MAX_BODY: Final = 64 << 10
_MAX_BYTES: Final = 1 << 60
_MOST_FIELDS: Final = 64


async def check(request: web.Request, site: Site) -> web.StreamResponse:
    """What the server would say to fields, and to so many files and bytes.

    Takes ``{"fields": {…}, "bytes": 0, "files": 0}``; answers ``{"errors": {field: sentence},
    "cuts": {field: sentence}, "problem": sentence}``.
    """
    context, principal = site.context, request[PRINCIPAL]
    asked = await json_body(request, _MAX_BODY)
    fields, size, count = _asked(asked)
    own = visible(principal).user_id
    if own is not None:
        fields["user_id"] = own
    errors: dict[str, str] = {}
    for name, value in fields.items():
        try:
            check_field(name, value, context.services, principal)
        except (BadField, NotAllowed) as problem:
            errors[name] = str(problem)
    found: dict[str, Any] = {"errors": errors, "cuts": {}, "problem": ""}
    right = {name: value for name, value in fields.items() if value and name not in errors}
    if right.get("service"):
        known = "user_id" in given(right)
        # Who it is for may not be typed yet: that changes nothing of the other fields.
        right = {"user_id": "somebody", **given(right)}
        try:
            wanted = upload_request(right, context.services, principal if known else LOCAL)
            found["cuts"] = dict(one.split(": ", 1) for one in wanted.warnings)
            if right.get("callback_url"):
                await context.webhooks.check(right["callback_url"])
            if count:
                await _check_files(context, wanted, size, count, known_user=known)
        except BadField as problem:
            errors[problem.field] = str(problem)
        except (FerrymanError, Refusal) as problem:
            found["problem"] = str(problem)
    return web.json_response(found, headers={"Cache-Control": "no-store"})


def _asked(found: dict[str, Any]) -> tuple[dict[str, str], int, int]:
    fields, size, count = found.get("fields"), found.get("bytes", 0), found.get("files", 0)
    good = isinstance(fields, dict) and len(fields) <= _MOST_FIELDS
    good = good and all(isinstance(value, str) for value in (fields or {}).values())
    good = good and all(
        isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= _MAX_BYTES
        for one in (size, count)
    )
    if not good:
        why = 'the body should be as in {"fields": {"name": "text"}, "bytes": 0, "files": 0}'
        raise Refusal(HTTPStatus.BAD_REQUEST, "invalid_json", why)
    return dict(fields or {}), size, count


async def _check_files(
    context: Context, wanted: UploadRequest, size: int, count: int, *, known_user: bool
) -> None:
    limits = context.form_limits
    if count > limits.max_files:
        why = f"there are {count} files, the most this server takes is {limits.max_files}"
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_many_files", why)
    if size > limits.max_bytes:
        why = (
            f"the files are {say_size(size)}, the most this server takes is "
            f"{say_size(limits.max_bytes)}"
        )
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", why)
    if size > wanted.limits.disk:
        service, most = wanted.service, wanted.limits.disk
        raise BundleTooLarge(service.name, service.limits.disk, most, size)
    if known_user:
        await context.accept.check_quota(wanted, size)


async def sent(request: web.Request, site: Site) -> web.StreamResponse:
    """``{"job": 17, "page": "/jobs/17"}``: what an upload under ``?key=`` of ``?user=`` has become;
    ``{"job": null}``: nothing yet.
    """
    context, principal = site.context, request[PRINCIPAL]
    key = request.query.get("key", "")
    user = user_asked_for(principal, request.query.get("user") or None)
    check_field(HEADER, key, context.services, principal)
    check_field("user_id", user, context.services, principal)
    job = await job_of_key(context.jobs, principal, user, key)
    found: dict[str, Any] = {"job": None}
    if job is not None:
        page = site.url(JOB_PAGE.replace("{id}", str(job.id)))
        found = {"job": job.id, "page": page}
    return web.json_response(found, headers={"Cache-Control": "no-store"})
