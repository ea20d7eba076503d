"""The audit trail, for operators."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.http.audit import TEXTS, audit_page
from server.http.context import Context
from server.http.parameter_types import MAX_ID, Param, word
from server.http.params import int_param
from server.http.query import paging
from server.http.route import Route
from shared import wire
from shared.wire import AuditPage

_PAGE: Final = 500


async def page(request: web.Request, context: Context) -> AuditPage:
    """Who did what and when, the newest first: requests that changed something, or were to."""
    limit = int_param(request, "limit", _PAGE, 1, 1_000)
    before = int_param(request, "cursor", MAX_ID, 0, MAX_ID)
    return await audit_page(context, request.query, limit, before)


_MOMENT: Final = "a time with its offset from UTC, or how long ago, as in 2h"

ROUTES: Final = (
    Route(
        "GET",
        "/api/v1/audit",
        Area.ADMIN,
        page,
        {200: wire.AuditPage},
        {
            "principal": word("only what the principal of this name did", TEXTS["principal"][1]),
            "user": word("only what a portal did for this user", TEXTS["user"][1]),
            "token": word("only what was done with the token of this id", TEXTS["token"][1]),
            "action": word(
                "only actions whose text has this in it", TEXTS["action"][1], example="cancel"
            ),
            "target": word(
                "only what was done to this: a job's number, a token's id", TEXTS["target"][1]
            ),
            "since": Param(f"only then or later: {_MOMENT}", example="2h"),
            "until": Param(f"only before: {_MOMENT}", example="2h"),
            **paging(_PAGE, 1_000),
        },
    ),
)
