"""The jobs that the caller may see, newest first."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.http.filters import job_filter
from server.http.params import int_param
from server.http.query import FILTERS, paging
from server.stages.read import list_jobs
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.http.authentication import PRINCIPAL

_ROWS: Final = 50


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """A page of the list."""
    context = site.context
    where = job_filter(request.query, context.clock.now())
    before = int_param(request, "cursor", 0, 0, 2**63 - 1) or None
    jobs, following = await list_jobs(context.jobs, request[PRINCIPAL], where, before, _ROWS)
    return site.page(
        request,
        "jobs/list.html",
        title="Jobs",
        jobs=await context.documents(jobs),
        following=following,
    )


ROUTES: Final = (PageRoute("GET", "/jobs", Area.JOBS, page, query=FILTERS | paging(_ROWS, _ROWS)),)
