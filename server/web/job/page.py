"""The page of a job."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.domain.permits import Shows
from server.http.paths import JOB_PAGE
from server.http.requested_job import requested_job
from server.web.site.page_route import PageRoute
from server.web.site.site import Site

_AGAIN_S: Final = 3
"""Until a page without scripts loads itself again."""


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """Where a job stands, for people."""
    context = site.context
    job = await requested_job(request, context)
    queue = (await context.queue_of([job])).get(job.id)
    batch = (await context.children_of([job])).get(job.id)
    document = context.document(job, queue, batch)
    return site.page(
        request,
        "job/job.html",
        title=f"Job {job.id}: {job.state}",
        refresh_s=None if job.ended else _AGAIN_S,
        job=document,
    )


ROUTES: Final = (PageRoute("GET", JOB_PAGE, Area.JOBS, page, by_link=(Shows.JOB,)),)
