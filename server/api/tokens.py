"""API tokens, which operators make; and who a caller is."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web

from server.domain.access import Area
from server.domain.tokens import NAME, TokenRecord
from server.http.context import Context
from server.http.params import Param, choice, flag, int_param, read_body, whole, word
from server.http.route import TOKEN, TOKENS, Body, Route, json_answer
from server.http.tokens import (
    MAX_PATTERNS,
    NewTokenBody,
    RotateBody,
    new_token,
    scope_names,
    time_or_none,
    token_document,
    token_fields,
    token_page,
)
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.http.request_log import TARGET
from shared.principals import SCOPES, TOKEN_ROLES, Scope
from shared.units.durations import LONGEST_S
from shared.wire import NewTokenDoc, TokenDoc, TokenPage, WhoAmI

_NO_STORE: Final = {"Cache-Control": "no-store"}
_OPEN: Final = (
    'this server answers without a token, too: set [server] auth = "token" to change that'
)


async def create(request: web.Request, context: Context) -> web.StreamResponse:
    """Make a token; its text is in this answer only."""
    new = new_token(await read_body(request, NewTokenBody))
    record, text = await context.tokens.create(new, request[PRINCIPAL].name)
    request[TARGET] = record.id
    return json_answer(_shown_once(context, record, text), HTTPStatus.CREATED, _NO_STORE)


async def page(request: web.Request, context: Context) -> TokenPage:
    """The tokens, newest first, without their secrets."""
    limit = int_param(request, "limit", 500, 1, 1_000)
    return await token_page(context, request.query, limit)


async def revoke(request: web.Request, context: Context) -> TokenDoc:
    """Refuse the token from now on."""
    record = await context.tokens.revoke(request.match_info["token"], request[PRINCIPAL].name)
    return token_document(record, context.tokens.now())


async def rotate(request: web.Request, context: Context) -> web.StreamResponse:
    """Give the token another secret; its text is in this answer only."""
    body = await read_body(request, RotateBody)
    record, text = await context.tokens.rotate(
        request.match_info["token"], body.overlap, body.expires_in, request[PRINCIPAL].name
    )
    return json_answer(_shown_once(context, record, text), HTTPStatus.OK, _NO_STORE)


async def whoami(request: web.Request, context: Context) -> WhoAmI:
    """Whose request this is, and what it may do."""
    principal = request[PRINCIPAL]
    token = context.tokens.record(principal.token_id) if principal.token_id else None
    assert principal.role is not None  # nobody else gets here
    return WhoAmI(
        name=principal.name,
        role=cast(Any, principal.role.value),
        user_id=principal.user_id,
        users=list(principal.users),
        acts_as=principal.acts_as,
        scopes=scope_names(scope for scope in SCOPES[principal.role] if principal.may(scope)),
        token_id=principal.token_id,
        expires_at=time_or_none(token.expires_at) if token else None,
        token_needed=context.token_needed(),
    )


def _shown_once(context: Context, record: TokenRecord, text: str) -> NewTokenDoc:
    fields = token_fields(record, context.tokens.now())
    return NewTokenDoc(**fields, token=text, message="" if context.token_needed() else _OPEN)


_DURATION: Final = {
    "type": ["number", "string"],
    "minimum": 0,
    "maximum": LONGEST_S,
    "examples": ["90d"],
}
_SCOPES: Final = {"type": "array", "items": {"enum": list(Scope)}, "minItems": 1}
_NAME: Final = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_NEW_TOKEN: Final = Body(
    "application/json",
    {
        "type": "object",
        "properties": {
            "name": _NAME,
            "role": {"enum": list(TOKEN_ROLES)},
            "user_id": _NAME,
            "users": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_PATTERNS},
            "scopes": _SCOPES,
            "expires_in": _DURATION,
        },
        "required": ["name", "role"],
        "additionalProperties": False,
    },
    {"name": "ann-laptop", "role": "user", "user_id": "ann", "expires_in": "90d"},
    NewTokenBody,
)
_ROTATION: Final = Body(
    "application/json",
    {
        "type": "object",
        "properties": {"overlap": _DURATION, "expires_in": _DURATION},
        "additionalProperties": False,
    },
    {"overlap": "1h"},
    RotateBody,
)

ROUTES: Final = (
    Route("GET", "/api/v1/whoami", Area.CALLER, whoami, {200: wire.WhoAmI}),
    Route(
        "POST",
        TOKENS,
        Area.ADMIN,
        create,
        {201: wire.NewTokenDoc},
        body=_NEW_TOKEN,
    ),
    Route(
        "GET",
        TOKENS,
        Area.ADMIN,
        page,
        {200: wire.TokenPage},
        {
            "id": word("only the one with this id, whatever became of it", 10),
            "name": word("only this principal's", 64),
            "role": choice("only of this role", TOKEN_ROLES),
            "user": word("only this user's", 64),
            "ended": flag("1: also those that were revoked or have expired"),
            "limit": whole("items of a page", 1, 1_000, 500),
            "cursor": Param("where the page begins: what the page before gave as next"),
        },
    ),
    Route("DELETE", TOKEN, Area.ADMIN, revoke, {200: wire.TokenDoc}),
    Route(
        "POST",
        f"{TOKEN}/rotate",
        Area.ADMIN,
        rotate,
        {200: wire.NewTokenDoc},
        body=_ROTATION,
    ),
)
