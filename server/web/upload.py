"""The page that uploads: a form, what takes it, and what its script asks before it sends."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias

from aiohttp import web
from pydantic import Field

from server.api.upload import accept_upload
from server.domain.access import Area, check_area, user_asked_for, visible
from server.domain.errors import BadField, BundleTooLarge, FerrymanError, NotAllowed
from server.domain.jobs import Job
from server.domain.upload_fields import (
    HEADER,
    NEEDED,
    USER_ID,
    UploadRequest,
    check_field,
    given,
    upload_request,
)
from server.http.context import Context
from server.http.params import JsonBody, int_param, read_body
from server.http.problems import Refusal, translate, wants_page
from server.http.route import JOB_PAGE, json_answer
from server.stages.accept import QUEUED
from server.stages.read import job_of_key, read_job
from server.store import users
from server.web.site import PageRoute, Site
from server.web.upload_form import (
    FROM,
    GROUPS,
    INPUTS,
    KEEP,
    LIMITS,
    MAIN,
    SCRIPT,
    FormerFiles,
    Offer,
    PageForm,
    fields_of,
    former_bundle,
    former_files,
)
from shared.http.authentication import PRINCIPAL
from shared.multipart.parser import FormRefused
from shared.principals import LOCAL, Scope
from shared.units.sizes import say_size
from shared.wire import StatusBody

PATH: Final = "/new"
_BESIDE: Final = frozenset({*NEEDED, *INPUTS, SCRIPT})
"""Parts of a form that have a place for an error beside them; the other ones are files."""
_ORDER: Final = (*NEEDED, *INPUTS, SCRIPT, "file")
"""Of the fields in the form."""
_MAX_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the form shows.

    Attributes:
        values: of its fields.
        errors: field -> what is wrong with it; ``file``: with the files.
        problem: what is wrong with all of it.
    """

    values: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    status: int = HTTPStatus.OK


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """The form. Fields may stand in the query."""
    values = {
        name: text[:65_536]
        for name, text in request.query.items()
        if name in _BESIDE or name == KEEP
    }
    job = await _former_job(request, site)
    former = None
    if job is not None:
        former = await former_files(site.context, job)
        known = await fields_of(site.context, job)
        if former is not None:
            known |= {SCRIPT: former.script, KEEP: "1"}
        values = known | values
    return await _show(request, site, _Shown(values), former)


async def send(request: web.Request, site: Site) -> web.StreamResponse:
    """Take the form: on to the job, or the form again with what is wrong."""
    context = site.context
    former = await _former_job(request, site)
    async with _form(site, former) as form:
        try:
            job, is_new = await accept_upload(request, context, form)
        except (FerrymanError, FormRefused, Refusal) as problem:
            refusal = translate(problem)
            if refusal is None or not wants_page(request):
                raise
            files = None if former is None else await former_files(context, former)
            response = await _show(request, site, _refused(refusal, form), files)
            if refusal.retry_after_s is not None:
                response.headers["Retry-After"] = str(refusal.retry_after_s)
            if not request.content.at_eof():
                response.force_close()  # the rest of a refused body is of no interest
            return response
    there = JOB_PAGE.replace("{id}", str(job.id))
    if wants_page(request):
        return site.go_to(there)
    headers = {"Location": site.url(there)}
    if not is_new:
        headers["Idempotent-Replayed"] = "true"
    body = StatusBody(id=job.id, status=job.state, message=QUEUED)
    return json_answer(body, HTTPStatus.CREATED, headers)


@asynccontextmanager
async def _form(site: Site, former: Job | None) -> AsyncIterator[PageForm]:
    if former is None:
        yield PageForm()
        return
    async with former_bundle(site.context, former) as bundle:
        yield PageForm(bundle)


async def _former_job(request: web.Request, site: Site) -> Job | None:
    """The job that ``?from=`` names. Raises NotAllowed, NoSuchJob, Refusal."""
    number, principal = int_param(request, FROM, 0, 0, _MAX_ID), request[PRINCIPAL]
    if not number:
        return None
    check_area(principal, Area.JOBS, Scope.READ)  # it is shown, and its files are sent along
    return await read_job(site.context.core.database, principal, number)


def _refused(refusal: Refusal, form: PageForm) -> _Shown:
    errors, problem, status = dict(form.errors), "", refusal.status
    if errors:
        status = HTTPStatus.BAD_REQUEST
    else:
        message = refusal.message
        if refusal.part in _BESIDE:
            errors[refusal.part or ""] = message
        elif refusal.part is not None or refusal.code in ("no_run_sh", "no_file", "too_large"):
            errors["file"] = message
        else:
            problem = message
    return _Shown(form.typed, errors, problem, status)


async def _show(
    request: web.Request, site: Site, shown: _Shown, former: FormerFiles | None
) -> web.Response:
    context, principal = site.context, request[PRINCIPAL]
    most = context.core.settings.server.max_upload
    offers = [
        Offer.of(one, most, offered=context.core.registry.offered(one.name))
        for one in sorted(context.core.services.values(), key=lambda one: one.name)
        if not one.retired
    ]
    service = shown.values.get("service", "")
    chosen = next((one for one in offers if one.name == service), None)
    if chosen is None and len(offers) == 1 and not service:
        chosen = offers[0]
    own = visible(principal).user_id
    quota = {}
    if own is not None and USER_ID.fullmatch(own):
        quota = await _quota(site, own)
    values: dict[str, Any] = {
        "title": "Upload",
        "offers": offers,
        "chosen": chosen,
        "own_user": own,
        "inputs": INPUTS,
        "main": MAIN,
        "limits": LIMITS,
        "groups": GROUPS,
        "values": shown.values,
        "errors": shown.errors,
        "problem": shown.problem,
        "first_error": next((one for one in _ORDER if one in shown.errors), ""),
        "former": former,
        "most_bytes": most,
        "most_files": context.core.settings.server.max_files,
        "quota": quota,
        "key": secrets.token_urlsafe(24),
        "key_field": HEADER,
        "example": EXAMPLE,
    }
    return site.page(request, "upload/upload.html", status=shown.status, **values)


async def _quota(site: Site, user: str) -> dict[str, tuple[int, int]]:
    """What -> bytes used, and the most; only what is limited."""
    context = site.context
    allowed, found = context.core.settings.allowances.of(user), {}
    if allowed.stored:
        found["Stored"] = (
            (await context.core.database.read(users.stored, user))[user],
            allowed.stored,
        )
    if allowed.uploaded:
        used = (await context.core.database.read(users.uploaded, context.core.clock.now(), user))[
            user
        ]
        found["Uploaded today"] = (used, allowed.uploaded)
    return found


EXAMPLE: Final = """\
#!/bin/sh
# Runs in a folder with your files. What it leaves there is the result.
set -e

echo "::progress value=1,total=2::counting"
wc -l ./* > counts.txt

echo "::progress value=2,total=2::done"
"""


_Amount: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=1 << 60)]


class CheckBody(JsonBody):
    """What ``POST /new/check`` takes: fields, and so many files and bytes."""

    fields: Annotated[dict[str, str], Field(max_length=64)]
    bytes: _Amount = 0
    files: _Amount = 0


async def check(request: web.Request, site: Site) -> web.StreamResponse:
    """What the server would say to them: ``{"errors": {field: sentence}, "cuts": {field: sentence},
    "problem": sentence}``.
    """
    context, principal = site.context, request[PRINCIPAL]
    body = await read_body(request, CheckBody)
    fields = dict(body.fields)
    own = visible(principal).user_id
    if own is not None:
        fields["user_id"] = own
    errors: dict[str, str] = {}
    for name, value in fields.items():
        try:
            check_field(name, value, context.core.services, principal)
        except (BadField, NotAllowed) as problem:
            errors[name] = str(problem)
    found: dict[str, Any] = {"errors": errors, "cuts": {}, "problem": ""}
    right = {name: value for name, value in fields.items() if value and name not in errors}
    if right.get("service"):
        known = "user_id" in given(right)
        # Who it is for may not be typed yet: that changes nothing of the other fields.
        right = {"user_id": "somebody", **given(right)}
        try:
            wanted = upload_request(right, context.core.services, principal if known else LOCAL)
            found["cuts"] = dict(one.split(": ", 1) for one in wanted.upload_warnings)
            if right.get("callback_url"):
                await context.stages.webhooks.check(right["callback_url"])
            if body.files:
                await _check_files(context, wanted, body, known_user=known)
        except BadField as problem:
            errors[problem.field] = str(problem)
        except (FerrymanError, Refusal) as problem:
            found["problem"] = str(problem)
    return web.json_response(found, headers={"Cache-Control": "no-store"})


async def _check_files(
    context: Context, wanted: UploadRequest, body: CheckBody, *, known_user: bool
) -> None:
    limits, count, size = context.core.settings.server.form_limits, body.files, body.bytes
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
        await context.stages.accept.check_quota(wanted, size)


async def sent(request: web.Request, site: Site) -> web.StreamResponse:
    """``{"job": 17, "page": "/jobs/17"}``: what an upload under ``?key=`` of ``?user=`` has become;
    ``{"job": null}``: nothing yet.
    """
    context, principal = site.context, request[PRINCIPAL]
    key = request.query.get("key", "")
    user = user_asked_for(principal, request.query.get("user") or None)
    check_field(HEADER, key, context.core.services, principal)
    check_field("user_id", user, context.core.services, principal)
    job = await job_of_key(context.core.database, principal, user, key)
    found: dict[str, Any] = {"job": None}
    if job is not None:
        page = site.url(JOB_PAGE.replace("{id}", str(job.id)))
        found = {"job": job.id, "page": page}
    return web.json_response(found, headers={"Cache-Control": "no-store"})


ROUTES: Final = (
    PageRoute("GET", PATH, Area.JOBS, page, needs=Scope.SUBMIT),
    PageRoute("POST", PATH, Area.JOBS, send, needs=Scope.SUBMIT, files=True),
    PageRoute("POST", f"{PATH}/check", Area.JOBS, check, needs=Scope.SUBMIT),
    PageRoute("GET", f"{PATH}/sent", Area.JOBS, sent, needs=Scope.SUBMIT),
)
