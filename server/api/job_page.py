"""The page of a job, for browsers."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.api.context import Context
from server.api.paths import JOB_PAGE
from server.api.requested_job import requested_job
from server.api.route import LINK_PARAMETER, Route
from server.domain.access import Area
from server.domain.permits import Shows
from server.web.frame import HEADERS
from server.web.job_page import job_page


async def page(request: web.Request, context: Context) -> web.StreamResponse:
    """Where a job stands, for people; it loads itself again until the job has ended."""
    job = await requested_job(request, context)
    queue = (await context.queue_of([job])).get(job.id)
    batch = (await context.children_of([job])).get(job.id)
    document = context.document(job, queue, batch)
    text = job_page(document, request.query.get(LINK_PARAMETER, ""))
    return web.Response(text=text, content_type="text/html", headers=HEADERS)


ROUTES: Final = (Route("GET", JOB_PAGE, Area.JOBS, page, {200: "text/html"}, by_link=(Shows.JOB,)),)
