"""What a user has used, and what is left."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area, user_asked_for
from server.domain.allowances import end_of_day
from server.domain.errors import BadField
from server.domain.upload_fields import USER_ID
from server.http.context import Context
from server.http.parameter_types import word
from server.http.route import Route
from shared import wire
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.wire import UsageDoc

_COUNTED: Final = 10_000
"""Waiting jobs of one service, at most."""


async def usage(request: web.Request, context: Context) -> UsageDoc:
    """What a user has used of everything that is limited, and what is left.

    A user's own; operators and portals name the user, a portal one of its own users.
    """
    user = user_asked_for(request[PRINCIPAL], request.query.get("user"))
    if not USER_ID.fullmatch(user):
        raise BadField("user", "invalid_user_id", "Invalid user: no user is called so")
    now, allowed = context.clock.now(), context.allowances.of(user)
    under_way = Counter[str]()
    for one in await context.jobs.held():
        if one.user_id == user:
            under_way[one.service] += one.slots
    with_queue = set(await context.jobs.queued_services())
    services = []
    for service in context.services.values():
        waiting = 0
        if service.name in with_queue:
            waiting = await context.jobs.queued(service.name, user, _COUNTED)
        if service.retired and not (waiting or under_way[service.name]):
            continue
        services.append(
            {
                "service": service.name,
                "under_way": _quota(under_way[service.name], service.runs_of(user)),
                "waiting": _quota(waiting, service.queued_of(user)),
            }
        )
    today = _quota(await context.jobs.uploaded(user, now), allowed.uploaded)
    found: dict[str, Any] = {
        "user_id": user,
        "stored": _quota(await context.jobs.stored(user), allowed.stored),
        "uploaded_today": today | {"renewed_at": utc(end_of_day(now))},
        "uploads": _quota(context.upload_limits.of_user(user), allowed.uploads),
        "rate_limit": str(allowed.rate) if allowed.rate.number else None,
        "services": services,
    }
    return UsageDoc.model_validate(found)


def _quota(used: int, limit: int) -> dict[str, Any]:
    """Of which 0 is no limit."""
    return {"used": used} | ({"limit": limit, "left": max(0, limit - used)} if limit else {})


ROUTES: Final = (
    Route(
        "GET",
        "/api/v1/usage",
        Area.JOBS,
        usage,
        {200: wire.UsageDoc},
        ("missing_user",),
        {"user": word("whose; a user's own is meant where it is left out", 64)},
    ),
)
