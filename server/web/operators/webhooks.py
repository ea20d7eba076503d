"""Webhooks: what was delivered, what is tried again, and what failed."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area, may_use
from server.http.deliveries import DELIVERY_STATES, delivery_number, delivery_page, delivery_read
from server.http.params import MAX_ID, int_param
from server.stages.read import read_job
from server.web.site import PageRoute, Site
from shared.http.authentication import PRINCIPAL

_AGAIN_S: Final = 5
_SENT: Final = "it is sent again now, under the id that it had"


async def listing(request: web.Request, site: Site) -> web.StreamResponse:
    """The deliveries that the caller may see, newest first."""
    context, principal = site.context, request[PRINCIPAL]
    state = request.query.get("state") or None
    job = int_param(request, "job", 0, 0, MAX_ID) if request.query.get("job") else None
    if job is not None:
        await read_job(context.jobs, principal, job)
    return site.page(
        request,
        "operators/webhooks.html",
        title="Webhooks" if job is None else f"Webhooks of job {job}",
        refresh_s=_AGAIN_S,
        found=await delivery_page(request, context, job, state),
        states=DELIVERY_STATES,
        chosen=state,
        job=job,
        first="cursor" not in request.query,
    )


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """A delivery, with its tries."""
    found = await delivery_read(request, site.context)
    return site.page(
        request,
        "operators/delivery.html",
        title=f"Webhook {found.id}",
        refresh_s=_AGAIN_S if found.state == "pending" else None,
        one=found,
        may_replay=may_use(request[PRINCIPAL], Area.JOBS, "POST"),
        notice=_SENT if request.query.get("done") == "replay" else None,
    )


async def replay(request: web.Request, site: Site) -> web.StreamResponse:
    """Send it again, now."""
    number = delivery_number(request)
    await site.context.webhooks.replay(request[PRINCIPAL], number)
    return site.go_to(f"/webhooks/{number}", done="replay")


_PATH: Final = "/webhooks/{delivery}"
ROUTES: Final = (
    PageRoute("GET", "/webhooks", Area.JOBS, listing),
    PageRoute("GET", _PATH, Area.JOBS, page),
    PageRoute("POST", f"{_PATH}/replay", Area.JOBS, replay),
)
