"""The audit trail: what is added to it, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from server.domain.access import Area
from server.domain.errors import BadField
from server.domain.field_values import moment
from server.http.context import Context
from server.http.documents import shown
from server.http.params import MAX_ID, Param, int_param, paging, word
from server.http.route import Route
from server.stages.audit import AuditTrail
from server.store.audit import AuditEntry, AuditFilter
from shared import wire
from shared.clock import Clock
from shared.http.authentication import PRINCIPAL
from shared.http.origins import SAFE_METHODS
from shared.http.refusals import REQUEST_ID
from shared.http.request_log import ERROR_CODE, TARGET, UPLOADED_ID, peer_address
from shared.logs import RateLimiter
from shared.wire import AuditDoc, AuditPage

TEXTS: Final = {
    "principal": ("principal", 64),
    "user": ("acts_as", 64),
    "token": ("token_id", 64),
    "action": ("action", 200),
    "target": ("target", 200),
}
"""Parameter -> field of the filter, and the most characters."""


async def audit_page(
    context: Context, chosen: Mapping[str, str], limit: int, before: int
) -> AuditPage:
    """Entries with a lower number than ``before``, the newest first.

    Args:
        chosen: those of TEXTS, ``since`` and ``until``, as far as they are given.

    Raises:
        BadField
    """
    which: dict[str, Any] = {}
    for name, (field, _) in TEXTS.items():
        if name in chosen:
            which[field] = chosen[name]
    for name in ("since", "until"):
        if name in chosen:
            try:
                which[name] = moment(chosen[name], context.core.clock.now())
            except ValueError as problem:
                code = f"invalid_{name}"
                raise BadField(name, code, f"Invalid {name}: {problem}") from None
    found = await context.access.audit.page(AuditFilter(**which), limit + 1, before)
    following = str(found[limit - 1].seq) if len(found) > limit else None
    return AuditPage(items=[_document(one) for one in found[:limit]], next=following)


def _document(entry: AuditEntry) -> AuditDoc:
    role = None if entry.role is None else entry.role.value
    return AuditDoc(**shown(entry, AuditDoc) | {"role": role, "status": entry.status or None})


_AT_ONCE: Final = frozenset({Area.ADMIN, Area.AGENTS, Area.SERVICES})
"""Changes of these are in the trail before their answer is sent."""
_ASKS: Final = frozenset({("POST", "/new/check"), ("POST", "/jobs/bulk")})
"""Forms that ask what would be done, and do nothing."""
_LIMITED: Final = frozenset({401, 403, 415, 421, 429, 503})
"""Refusals of which whoever has a token may cause any number, too."""
_LIMITED_A_SECOND: Final = 10.0
_LONGEST: Final = 200


class Recorder:
    """Adds every request to the trail that was to change something, also those that were refused.

    Args:
        areas: method and path of each route -> what it is about.
    """

    def __init__(
        self, trail: AuditTrail, areas: Mapping[tuple[str, str], Area], clock: Clock
    ) -> None:
        self._trail, self._areas, self._clock = trail, areas, clock
        self._refused = RateLimiter(_LIMITED_A_SECOND)

    def add(self, request: web.Request, status: int) -> bool:
        """Add it; returns whether its answer has to wait until the trail is written.

        Args:
            status: of the answer; 0: the caller left before it.
        """
        if request.method in SAFE_METHODS:
            return False
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "(no such route)"
        if status == HTTPStatus.OK and (request.method, path) in _ASKS:
            return False
        principal = request[PRINCIPAL]
        limited = status in _LIMITED or not principal.authenticated
        left_out = self._refused.due() if limited else 0
        if left_out is None:
            return False
        entry = AuditEntry(
            at=self._clock.now(),
            principal=principal.name,
            role=principal.role,
            token_id=principal.token_id,
            acts_as=principal.acts_as,
            action=f"{request.method[:20]} {path}",
            target=_target(request)[:_LONGEST],
            status=status,
            code=request.get(ERROR_CODE),
            peer=peer_address(request),
            request_id=request[REQUEST_ID],
            left_out=left_out,
        )
        self._trail.add(entry)
        return self._areas.get((request.method, path)) in _AT_ONCE

    async def write(self) -> None:
        """Write what was added."""
        await self._trail.write()


def _target(request: web.Request) -> str:
    known = request.get(TARGET) or request.get(UPLOADED_ID)
    return str(known) if known else " ".join(request.match_info.values())


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
