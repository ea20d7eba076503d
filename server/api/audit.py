"""The audit trail, for operators."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from server.domain.access import Area
from server.domain.audit import AuditEntry, AuditFilter
from server.domain.errors import BadField
from server.domain.field_values import moment
from server.http.context import Context
from server.http.parameter_types import MAX_ID, Param, word
from server.http.params import int_param
from server.http.query import paging
from server.http.route import Route
from shared import wire
from shared.clock import utc
from shared.wire import AuditDoc, AuditPage

_TEXTS: Final = {
    "principal": ("principal", 64),
    "user": ("acts_as", 64),
    "token": ("token_id", 64),
    "action": ("action", 200),
    "target": ("target", 200),
}
"""Parameter -> field of the filter, and the most characters."""
_PAGE: Final = 500


async def page(request: web.Request, context: Context) -> AuditPage:
    """Who did what and when, the newest first: requests that changed something, or were to."""
    limit = int_param(request, "limit", _PAGE, 1, 1_000)
    before = int_param(request, "cursor", MAX_ID, 0, MAX_ID)
    chosen: dict[str, Any] = {}
    for name, (field, _) in _TEXTS.items():
        text = request.query.get(name)
        if text is not None:
            chosen[field] = text
    for name in ("since", "until"):
        if name in request.query:
            try:
                chosen[name] = moment(request.query[name], context.clock.now())
            except ValueError as problem:
                code = f"invalid_{name}"
                raise BadField(name, code, f"Invalid {name}: {problem}") from None
    found = await context.audit.page(AuditFilter(**chosen), limit + 1, before)
    shown = found[:limit]
    following = str(shown[-1].seq) if len(found) > limit else None
    return AuditPage(items=[_document(one) for one in shown], next=following)


def _document(entry: AuditEntry) -> AuditDoc:
    return AuditDoc(
        seq=entry.seq,
        at=utc(entry.at),
        principal=entry.principal,
        role=None if entry.role is None else entry.role.value,
        token_id=entry.token_id,
        acts_as=entry.acts_as,
        action=entry.action,
        target=entry.target,
        status=entry.status or None,
        code=entry.code,
        peer=entry.peer,
        request_id=entry.request_id,
        left_out=entry.left_out,
    )


_MOMENT: Final = "a time with its offset from UTC, or how long ago, as in 2h"

ROUTES: Final = (
    Route(
        "GET",
        "/api/v1/audit",
        Area.ADMIN,
        page,
        {200: wire.AuditPage},
        (),
        {
            "principal": word("only what the principal of this name did", _TEXTS["principal"][1]),
            "user": word("only what a portal did for this user", _TEXTS["user"][1]),
            "token": word("only what was done with the token of this id", _TEXTS["token"][1]),
            "action": word(
                "only actions whose text has this in it", _TEXTS["action"][1], example="cancel"
            ),
            "target": word(
                "only what was done to this: a job's number, a token's id", _TEXTS["target"][1]
            ),
            "since": Param(f"only then or later: {_MOMENT}", example="2h"),
            "until": Param(f"only before: {_MOMENT}", example="2h"),
            **paging(_PAGE, 1_000),
        },
    ),
)
