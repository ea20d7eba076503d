"""What a user has used of everything that is limited, and what is left."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from server.domain.allowances import end_of_day
from server.http.context import Context
from shared.clock import utc
from shared.wire import UsageDoc

_COUNTED: Final = 10_000
"""Waiting jobs of one service, at most."""


async def usage_of(context: Context, user: str, *, for_operators: bool = False) -> UsageDoc:
    """What the user has used, and what is left.

    Args:
        for_operators: with what is none of the user's business.
    """
    now, allowed = context.clock.now(), context.allowances.of(user)
    under_way = Counter[str]()
    for one in await context.jobs.held():
        if one.user_id == user:
            under_way[one.service] += one.slots
    with_queue = set(await context.jobs.queued_services())
    services: list[dict[str, Any]] = []
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
    today = None
    if allowed.uploaded:
        today = _quota(await context.jobs.uploaded(user, now), allowed.uploaded)
        today["renewed_at"] = utc(end_of_day(now))
    found: dict[str, Any] = {
        "user_id": user,
        "stored": _quota(await context.jobs.stored(user), allowed.stored),
        "uploaded_today": today,
        "uploads": _quota(context.upload_limits.of_user(user), allowed.uploads),
        "rate_limit": str(allowed.rate) if allowed.rate.number else None,
        "services": services,
    }
    if for_operators:
        found["group"] = allowed.group or None
    return UsageDoc.model_validate(found)


def _quota(used: int, limit: int) -> dict[str, Any]:
    """Of which 0 is no limit."""
    return {"used": used} | ({"limit": limit, "left": max(0, limit - used)} if limit else {})
