"""The children of a job, as a grid and as a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from server.domain import states
from server.domain.access import Area
from server.http.parameter_types import choice, whole
from server.http.params import int_param
from server.http.paths import JOB_PAGE
from server.http.problems import Refusal
from server.web.job.frame import frame_page, job_frame
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.wire import JobState

_AT_ONCE: Final = 500
_LAST: Final = 2**63 - 1
CHOICES: Final[Mapping[str, frozenset[JobState]]] = {
    "queued": frozenset({JobState.QUEUED}),
    "active": states.HOLDS_SLOT,
    "completed": frozenset({JobState.COMPLETED}),
    "failed": frozenset({JobState.FAILED}),
    "cancelled": frozenset({JobState.CANCELLED}),
}
"""As the children are counted in the job document."""


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """The children, the first one first."""
    chosen = request.query.get("show", "")
    chosen = chosen if chosen in CHOICES else ""
    after = int_param(request, "after", 0, 0, _LAST)
    frame = await job_frame(request, site)
    if frame.job.children is None:
        message = f"job {frame.job.id} has no children"
        raise Refusal(404, "no_batch", message)
    among = CHOICES[chosen] if chosen else None
    found = await site.context.jobs.children(frame.job.id, _AT_ONCE + 1, after, among)
    children = found[:_AT_ONCE]
    return frame_page(
        request,
        site,
        frame,
        "children",
        children=children,
        chosen=chosen,
        choices=list(CHOICES),
        following=children[-1].id if len(found) > _AT_ONCE else None,
        after=after,
        query={"show": chosen, "after": after or ""},
    )


ROUTES: Final = (
    PageRoute(
        "GET",
        f"{JOB_PAGE}/children",
        Area.JOBS,
        page,
        query={
            "show": choice("only these", CHOICES),
            "after": whole("children behind this job", 0, _LAST),
        },
    ),
)
