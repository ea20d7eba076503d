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
from server.http.problems import Refusal
from server.store import changes, users
from server.web.site import PageRoute, Site
from shared.wire import JobState

_AGAIN_S: Final = 5
_ROWS: Final = 50
_AT_WORK: Final = 25
_LONGEST: Final = 64


async def listing(request: web.Request, site: Site) -> web.StreamResponse:
    """Those with work first, then all by name."""
    context, first = site.context, request.query.get("from", "").strip()
    if len(first) > _LONGEST or not first.isprintable():
        raise BadField("from", "invalid_from", "from should be the beginning of a user's name")
    held = Counter[str]()
    running = Counter[str]()
    counted = await changes.totals_of(context.core.database)
    for (_, user, _, state), jobs in dict(counted.slots).items():
        held[user] += jobs
        running[user] += jobs if state is JobState.RUNNING else 0
    queued = Counter[str]()
    for (_, user), jobs in dict(counted.queued).items():
        queued[user] += jobs
    busy = [] if first else _busy(held, queued)
    found = await context.core.database.read_list(users.named, first, _ROWS + 1)
    shown = found[:_ROWS]
    now = context.core.clock.now()
    stored = await context.core.database.read_list(users.stored, *{*busy, *shown})
    uploaded = await context.core.database.read_list(users.uploaded, now, *{*busy, *shown})

    def view(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "stored": stored[name],
            "uploaded": uploaded[name],
            "waiting": f"{queued[name]:,}",
            "allowed": context.core.settings.allowances.of(name),
        }

    return site.page(
        request,
        "operators/users.html",
        title="Users",
        refresh_s=_AGAIN_S,
        held=held,
        running=running,
        busy=[
            view(one) for one in sorted(busy, key=lambda name: (-held[name], -queued[name], name))
        ],
        everybody=[view(one) for one in shown],
        following=found[_ROWS] if len(found) > _ROWS else None,
        first=first,
    )


def _busy(held: Mapping[str, int], queued: Mapping[str, int]) -> list[str]:
    """Who has jobs under way or waiting, a few of them."""
    most = sorted(held, key=lambda user: (-held[user], user))
    return [*most, *sorted(queued.keys() - held.keys())][:_AT_WORK]


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
        known=context.core.settings.allowances.has(user)
        or await context.core.database.read_list(users.named, user, 1) == [user],
    )


ROUTES: Final = (
    PageRoute("GET", "/users", Area.AGENTS, listing),
    PageRoute("GET", "/users/{name}", Area.AGENTS, page),
)
