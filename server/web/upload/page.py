"""The page that uploads: a form, and what takes it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area, check_area, visible
from server.domain.errors import FerrymanError
from server.domain.jobs import Job
from server.domain.upload_fields import HEADER, NEEDED, USER_ID
from server.http.params import int_param
from server.http.paths import JOB_PAGE
from server.http.problems import Refusal, translate, wants_page
from server.http.route import json_answer
from server.http.uploads import accept_upload
from server.stages.accept import QUEUED
from server.stages.read import read_job
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from server.web.upload import checks
from server.web.upload.again import FormerFiles, fields_of, former_bundle, former_files
from server.web.upload.form import GROUPS, INPUTS, LIMITS, MAIN, Offer
from server.web.upload.page_form import FROM, KEEP, SCRIPT, PageForm
from shared.http.authentication import PRINCIPAL
from shared.multipart.limits import FormRefused
from shared.principals import Scope
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
    """The job that ``?from=`` names.

    Raises:
        NotAllowed, NoSuchJob, Refusal
    """
    number, principal = int_param(request, FROM, 0, 0, _MAX_ID), request[PRINCIPAL]
    if not number:
        return None
    check_area(principal, Area.JOBS, Scope.READ)  # it is shown, and its files are sent along
    return await read_job(site.context.jobs, principal, number)


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
    most = context.form_limits.max_bytes
    offers = [
        Offer.of(one, most, offered=context.fleet.offered(one.name))
        for one in sorted(context.services.values(), key=lambda one: one.name)
        if not one.retired
    ]
    service = shown.values.get("service", "")
    chosen = next((one for one in offers if one.name == service), None)
    if chosen is None and len(offers) == 1 and not service:
        chosen = offers[0]
    own = visible(principal).user_id
    user = own or shown.values.get("user_id", "")
    quota = {}
    if own is not None and USER_ID.fullmatch(own):
        quota = await _quota(site, own)
    values: dict[str, Any] = {
        "title": "Upload",
        "offers": offers,
        "chosen": chosen,
        "own_user": own,
        "user": user,
        "inputs": INPUTS,
        "main": MAIN,
        "limits": LIMITS,
        "groups": GROUPS,
        "values": shown.values,
        "errors": shown.errors,
        "problem": shown.problem,
        "first_error": next(
            (one for one in (*NEEDED, *INPUTS, SCRIPT, "file") if one in shown.errors), ""
        ),
        "former": former,
        "most_bytes": most,
        "most_files": context.form_limits.max_files,
        "quota": quota,
        "key": secrets.token_urlsafe(24),
        "key_field": HEADER,
        "example": EXAMPLE,
    }
    return site.page(request, "upload/upload.html", status=shown.status, **values)


async def _quota(site: Site, user: str) -> dict[str, tuple[int, int]]:
    """What -> bytes used, and the most; only what is limited."""
    context = site.context
    allowed, found = context.allowances.of(user), {}
    if allowed.stored:
        found["Stored"] = (await context.jobs.stored(user), allowed.stored)
    if allowed.uploaded:
        used = await context.jobs.uploaded(user, context.clock.now())
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

ROUTES: Final = (
    PageRoute("GET", PATH, Area.JOBS, page, needs=Scope.SUBMIT),
    PageRoute("POST", PATH, Area.JOBS, send, needs=Scope.SUBMIT, files=True),
    PageRoute("POST", f"{PATH}/check", Area.JOBS, checks.check, needs=Scope.SUBMIT),
    PageRoute("GET", f"{PATH}/sent", Area.JOBS, checks.sent, needs=Scope.SUBMIT),
)
