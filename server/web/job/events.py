"""What happened to a job, line by line."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.domain.permits import Shows
from server.http.parameter_types import whole
from server.http.params import int_param
from server.http.paths import JOB_PAGE
from server.web.job.frame import frame_page, job_frame
from server.web.site.page_route import PageRoute
from server.web.site.site import Site

_AT_ONCE: Final = 100
_LAST: Final = 2**63 - 1


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """Its events, the newest first."""
    before = int_param(request, "before", 0, 1, _LAST) if "before" in request.query else None
    frame = await job_frame(request, site)
    found = await site.context.jobs.latest_events(frame.job.id, _AT_ONCE + 1, before)
    events = found[:_AT_ONCE]
    return frame_page(
        request,
        site,
        frame,
        "events",
        events=events,
        older=events[-1].seq if len(found) > _AT_ONCE else None,
        before=before,
        query={} if before is None else {"before": before},
    )


ROUTES: Final = (
    PageRoute(
        "GET",
        f"{JOB_PAGE}/events",
        Area.JOBS,
        page,
        query={"before": whole("events before this one", 1, _LAST)},
        by_link=(Shows.JOB,),
    ),
)
