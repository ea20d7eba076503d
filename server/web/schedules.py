"""The schedules of the caller: when each is due, and what became of its latest time."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area, visible
from server.http.addresses import address
from server.http.parameter_types import MAX_ID
from server.http.params import int_param
from server.http.query import paging
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.clock import utc
from shared.http.authentication import PRINCIPAL

_ROWS: Final = 50


async def listing(request: web.Request, site: Site) -> web.StreamResponse:
    """The schedules, newest first."""
    context, principal = site.context, request[PRINCIPAL]
    cursor = int_param(request, "cursor", 0, 0, MAX_ID) or None
    found, following = context.schedules.page(principal, None, cursor or MAX_ID, _ROWS)
    return site.page(
        request,
        "jobs/schedules.html",
        title="Schedules",
        schedules=found,
        following=following,
        cursor=cursor,
        utc=utc,
        show_user=visible(principal).user_id is None,
        here=address(request, context, ""),
        service=next((one.name for one in context.services.values() if not one.retired), "example"),
    )


ROUTES: Final = (PageRoute("GET", "/schedules", Area.JOBS, listing, query=paging(_ROWS, _ROWS)),)
