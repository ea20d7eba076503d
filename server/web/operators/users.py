"""The users: what they have now, of what they may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.api.server_status import usage_of
from server.domain.access import Area
from server.domain.errors import BadField
from server.domain.upload_fields import USER_ID
from server.http.context import Context
from server.http.problems import Refusal
from server.store import queue, users
from server.web.site import PageRoute, Site

_AGAIN_S: Final = 5
_ROWS: Final = 50
_AT_WORK: Final = 25
_MOST_QUEUED: Final = 1_000
_SERVICES: Final = 50
"""Whose queues are looked into for users who wait."""
_LONGEST: Final = 64


async def listing(request: web.Request, site: Site) -> web.StreamResponse:
    """Those with work first, then all by name."""
    context, first = site.context, request.query.get("from", "").strip()
    if len(first) > _LONGEST or not first.isprintable():
        raise BadField("from", "invalid_from", "from should be the beginning of a user's name")
    held = Counter[str]()
    running = Counter[str]()
    for one in await context.database.read(queue.held):
        held[one.user_id] += one.slots
        running[one.user_id] += one.running
    busy = [] if first else await _busy(context, held)
    found = await context.database.read_list(users.named, first, _ROWS + 1)
    shown = found[:_ROWS]
    now = context.clock.now()
    loads = await context.database.read_list(users.loads, list({*busy, *shown}), now, _MOST_QUEUED)

    def view(name: str) -> dict[str, Any]:
        load, queued = loads[name], loads[name].queued
        waiting = f"{queued:,}" + ("+" if queued >= _MOST_QUEUED else "")
        allowed = context.settings.allowances.of(name)
        return {"name": name, "load": load, "waiting": waiting, "allowed": allowed}

    return site.page(
        request,
        "operators/users.html",
        title="Users",
        refresh_s=_AGAIN_S,
        held=held,
        running=running,
        busy=[
            view(one)
            for one in sorted(busy, key=lambda name: (-held[name], -loads[name].queued, name))
        ],
        everybody=[view(one) for one in shown],
        following=found[_ROWS] if len(found) > _ROWS else None,
        first=first,
    )


async def _busy(context: Context, held: Mapping[str, int]) -> list[str]:
    """Who has jobs under way or waiting, a few of them."""
    most = sorted(held, key=lambda user: (-held[user], user))[:_AT_WORK]
    waiting: set[str] = set()
    for service in (await context.database.read(queue.queued_services))[:_SERVICES]:
        waiting |= set(await context.database.read_list(users.waiting, service, _AT_WORK, 1))
    return [*most, *sorted(waiting - set(most))][:_AT_WORK]


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """One user: every quota."""
    user = request.match_info["name"]
    if not USER_ID.fullmatch(user):
        raise Refusal(HTTPStatus.NOT_FOUND, "user_not_found", "no user can be called so")
    context = site.context
    usage = await usage_of(context, user, for_operators=True)
    return site.page(
        request,
        "operators/user.html",
        title=f"User {user}",
        refresh_s=_AGAIN_S,
        usage=usage,
        known=context.settings.allowances.has(user)
        or await context.database.read_list(users.named, user, 1) == [user],
    )


ROUTES: Final = (
    PageRoute("GET", "/users", Area.AGENTS, listing),
    PageRoute("GET", "/users/{name}", Area.AGENTS, page),
)
