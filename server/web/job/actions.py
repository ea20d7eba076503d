"""What the buttons and forms on the pages of a job do."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.domain import field_values
from server.domain.access import Area
from server.domain.bulk import BulkAction
from server.domain.errors import AlreadyEnded, BadField
from server.domain.permits import Shows
from server.http.addresses import address
from server.http.made_links import made_link
from server.http.params import job_id
from server.http.paths import JOB_PAGE
from server.http.problems import BACK, Refusal
from server.http.route import LINK_PARAMETER
from server.web.job.frame import job_frame
from server.web.job.page import overview
from server.web.job.share import LinkForm
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.http.authentication import PRINCIPAL
from shared.principals import Scope

_PATIENCE_S: Final = 1.0
"""For the death of processes: the page says what it waits for, and goes on by itself."""
_MAX_TYPED: Final = 4_096
"""Characters of a field; what is longer is nobody's typing."""


async def cancel(request: web.Request, site: Site) -> web.StreamResponse:
    """Cancel."""
    here = _here(request, site)
    try:
        await site.context.cancel(request[PRINCIPAL], job_id(request), _PATIENCE_S)
    except AlreadyEnded:
        return site.go_to(here, done="ended")
    return site.go_to(here, done="cancel")


async def retry(request: web.Request, site: Site) -> web.StreamResponse:
    """A new run of a job that failed or was cancelled."""
    here = _here(request, site)
    await site.context.retry(request[PRINCIPAL], job_id(request))
    return site.go_to(here, done="retry")


async def delete(request: web.Request, site: Site) -> web.StreamResponse:
    """Delete the job with all that it left; cancel it if it was queued again meanwhile."""
    here = _here(request, site)
    job = await site.context.delete(request[PRINCIPAL], job_id(request), _PATIENCE_S)
    return site.go_to("/jobs", done="deleted") if job is None else site.go_to(here, done="cancel")


async def change_tags(request: web.Request, site: Site) -> web.StreamResponse:
    """Give it the tags of the field, and no others."""
    here, principal = _here(request, site), request[PRINCIPAL]
    frame = await job_frame(request, site)
    typed = str((await request.post()).get("tags", ""))[:_MAX_TYPED]
    try:
        wanted: tuple[str, ...] = field_values.tags(typed) if typed.strip() else ()
    except ValueError as problem:
        if not principal.may(Scope.READ):
            raise BadField("tags", "invalid_tags", f"Invalid tags: {problem}") from problem
        return await overview(
            request,
            site,
            frame,
            status=HTTPStatus.BAD_REQUEST,
            tags_typed=typed,
            tags_error=str(problem),
        )
    has = frame.record.tags
    changes = (
        (BulkAction.UNTAG, [tag for tag in has if tag not in wanted]),
        (BulkAction.TAG, [tag for tag in wanted if tag not in has]),
    )
    for action, tags in changes:
        if tags:
            (done,) = await site.context.bulk(principal, action, [frame.job.id], tags)
            if not done.ok:
                raise Refusal(HTTPStatus.CONFLICT, done.code, done.message)
    return site.go_to(here, done="tags")


async def share(request: web.Request, site: Site) -> web.StreamResponse:
    """Make a link, and show it on the page: nobody can look it up later."""
    _here(request, site)
    frame = await job_frame(request, site)
    form = await request.post()
    what, expires_in, path = (
        str(form.get(name, ""))[:_MAX_TYPED] for name in ("what", "expires_in", "path")
    )
    typed = LinkForm(what=what, expires_in=expires_in, path=path)
    asked = {"what": what, "expires_in": expires_in}
    if what == Shows.FILE:
        asked["path"] = path
    try:
        link, made = made_link(request, site.context, frame.record, asked)
    except BadField as problem:
        typed = replace(typed, field=problem.field, error=str(problem))
        return await overview(request, site, frame, share=typed, status=HTTPStatus.BAD_REQUEST)
    url = made.url
    if link.shows is Shows.JOB:
        url = address(request, site.context, frame.address, **{LINK_PARAMETER: made.link})
    return await overview(
        request, site, frame, share=replace(typed, url=url, expires_at=made.expires_at)
    )


def _here(request: web.Request, site: Site) -> str:
    """The job's page. Where what was asked for is refused, the error page leads back to it."""
    here = JOB_PAGE.replace("{id}", str(job_id(request)))
    request[BACK] = site.url(here)
    return here


ROUTES: Final = (
    PageRoute("POST", f"{JOB_PAGE}/cancel", Area.JOBS, cancel),
    PageRoute("POST", f"{JOB_PAGE}/retry", Area.JOBS, retry),
    PageRoute("POST", f"{JOB_PAGE}/delete", Area.JOBS, delete),
    PageRoute("POST", f"{JOB_PAGE}/tags", Area.JOBS, change_tags),
    PageRoute("POST", f"{JOB_PAGE}/share", Area.JOBS, share, needs=Scope.READ),
)
