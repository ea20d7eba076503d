"""What a user has used, and what is left."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area, user_asked_for
from server.domain.errors import BadField
from server.domain.upload_fields import USER_ID
from server.http.context import Context
from server.http.parameter_types import word
from server.http.route import Route
from server.http.usage import usage_of
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.principals import Role
from shared.wire import UsageDoc


async def usage(request: web.Request, context: Context) -> UsageDoc:
    """What a user has used of everything that is limited, and what is left.

    A user's own; operators and portals name the user, a portal one of its own users.
    """
    user = user_asked_for(request[PRINCIPAL], request.query.get("user"))
    if not USER_ID.fullmatch(user):
        raise BadField("user", "invalid_user_id", "Invalid user: no user is called so")
    is_operator = request[PRINCIPAL].role is Role.OPERATOR
    return await usage_of(context, user, for_operators=is_operator)


ROUTES: Final = (
    Route(
        "GET",
        "/api/v1/usage",
        Area.JOBS,
        usage,
        {200: wire.UsageDoc},
        {"user": word("whose; a user's own is meant where it is left out", 64)},
    ),
)
