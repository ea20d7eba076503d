"""The files of a job."""

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
    """The files of a job."""
    return frame_page(request, site, await job_frame(request, site), "files")


ROUTES: Final = (PageRoute("GET", f"{JOB_PAGE}/files", Area.JOBS, page, by_link=(Shows.JOB,)),)
