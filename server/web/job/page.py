"""The first page of a job."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.domain.permits import Shows
from server.http.paths import JOB_PAGE
from server.web.job.frame import frame_page, job_frame
from server.web.site.page_route import PageRoute
from server.web.site.site import Site


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """Where a job stands, for people."""
    return frame_page(request, site, await job_frame(request, site), "overview")


ROUTES: Final = (PageRoute("GET", JOB_PAGE, Area.JOBS, page, by_link=(Shows.JOB,)),)
