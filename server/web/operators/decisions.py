"""Who decided what about something lately, from the audit trail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.domain.access import Area, may_use
from server.domain.audit import AuditFilter
from server.http.context import Context
from server.http.parameter_types import MAX_ID
from shared.clock import utc
from shared.http.authentication import PRINCIPAL

_MOST: Final = 8
_LOOKED_AT: Final = 40


@dataclass(frozen=True, slots=True)
class Decision:
    """What was done, when and by whom."""

    what: str
    by: str
    at: datetime


async def decisions(
    request: web.Request, context: Context, target: str, route: str
) -> list[Decision] | None:
    """The latest that were carried out, newest first.

    Args:
        target: the name of what they were about.
        route: part of the routes that they came by.

    Returns:
        None: whoever asks may not see the audit trail.
    """
    if not may_use(request[PRINCIPAL], Area.ADMIN):
        return None
    which = AuditFilter(target=target, action=route)
    entries = await context.audit.page(which, _LOOKED_AT, MAX_ID)
    return [
        Decision(_word(one.action), one.principal, utc(one.at))
        for one in entries
        if HTTPStatus.OK <= one.status < HTTPStatus.BAD_REQUEST
    ][:_MOST]


def _word(action: str) -> str:
    """``POST /api/v1/agents/{name}/drain`` -> ``drain``."""
    method, _, path = action.partition(" ")
    last = path.rpartition("/")[2]
    if last != "{name}":
        return last
    return {"PUT": "settings", "DELETE": "retire"}.get(method, "settings")
