"""API tokens, which operators make; and who a caller is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, cast

from aiohttp import web
from pydantic import AfterValidator, Field, field_validator

from server.domain.access import Area
from server.domain.errors import BadField
from server.domain.tokens import NAME, RESERVED, TokenRecord, after
from server.domain.upload_fields import USER_ID
from server.http.context import Context
from server.http.documents import shown
from server.http.params import JsonBody, Param, choice, flag, int_param, read_body, whole, word
from server.http.route import TOKEN, TOKENS, Body, Route, json_answer
from server.store.tokens import TokenFilter
from shared import wire
from shared.clock import Micros, utc
from shared.http.authentication import PRINCIPAL
from shared.http.numbers import whole_number
from shared.http.request_log import TARGET
from shared.principals import SCOPES, TOKEN_ROLES, Role, Scope
from shared.units.durations import LONGEST_S, Duration
from shared.wire import NewTokenDoc, TokenDoc, TokenPage, WhoAmI

_PATTERN: Final = re.compile(r"[A-Za-z0-9._@*?\[\]!-]{1,64}")
MAX_PATTERNS: Final = 100


def _positive(seconds: float | None) -> float | None:
    if seconds is not None and seconds <= 0:
        raise ValueError("should be longer than 0s; leave it out for a token that does not expire")
    return seconds


Lifetime = Annotated[Duration | None, AfterValidator(_positive)]


class NewTokenBody(JsonBody):
    """What ``POST /api/v1/tokens`` takes."""

    name: str
    """Of the principal."""
    role: str
    """What it is for."""
    user_id: str | None = None
    """Of a ``user``: whose jobs it sees and makes; None: its name."""
    users: list[str] = Field(default=[], max_length=MAX_PATTERNS)
    """Of a ``portal``: patterns of the users for whom it may act; empty: any."""
    scopes: list[Scope] | None = None
    """None: all of its role's."""
    expires_in: Lifetime = None
    """Seconds, or a duration such as ``90d``; None: it does not expire."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError("should be 1 to 64 characters of A-Z a-z 0-9 . _ @ -")
        if RESERVED.fullmatch(value):
            raise ValueError("this name is the server's own; choose another one")
        return value

    @field_validator("user_id")
    @classmethod
    def _user(cls, value: str | None) -> str | None:
        if value is not None and not USER_ID.fullmatch(value):
            raise ValueError("should be 1 to 64 characters of A-Z a-z 0-9 . _ @ -")
        return value

    @field_validator("users")
    @classmethod
    def _users(cls, value: list[str]) -> list[str]:
        if not all(_PATTERN.fullmatch(one) for one in value):
            raise ValueError("each should be the name of a user, or a pattern such as lab-*")
        return value


class RotateBody(JsonBody):
    """What ``POST /api/v1/tokens/{token}/rotate`` takes."""

    overlap: Annotated[Duration, Field(ge=0)] = 0.0
    """For so long the former secret is good, too: seconds, or a duration such as ``1h``."""
    expires_in: Lifetime = None
    """From now; None: it ends when it would have."""


async def token_page(context: Context, chosen: Mapping[str, str], limit: int) -> TokenPage:
    """Tokens, newest first, without their secrets.

    Args:
        chosen: ``id``, ``name``, ``role``, ``user``, ``ended`` and ``cursor``, as far as given.

    Raises:
        BadField
    """
    role = chosen.get("role")
    every = chosen.get("ended", "0")
    if every not in ("1", "true", "0", "false"):
        raise BadField("ended", "invalid_ended", f"ended should be 1 or 0, not {every[:32]!r}")
    now = context.core.clock.now()
    which = TokenFilter(
        chosen.get("name"),
        None if role is None else _role(role),
        chosen.get("user"),
        now if every in ("0", "false") and "id" not in chosen else None,
        chosen.get("id"),
    )
    found = await context.access.tokens.page(which, limit + 1, _cursor(chosen.get("cursor")))
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else f"{last.created_at}.{last.id}"
    return TokenPage(items=[token_document(one, now) for one in found[:limit]], next=following)


def new_token(body: NewTokenBody, by: str, now: Micros) -> TokenRecord:
    """What an operator asks for, still without an id and a secret. Raises BadField."""
    role, user_id = _role(body.role), body.user_id
    if role is Role.USER:
        user_id = user_id or body.name
        if not USER_ID.fullmatch(user_id):
            raise BadField("user_id", "missing_user_id", "Missing user_id field")
    elif user_id is not None:
        why = f"Invalid user_id: only a token of the role user has one, not of {role}"
        raise BadField("user_id", "invalid_user_id", why)
    if body.users and role is not Role.PORTAL:
        why = f"Invalid users: only a token of the role portal has them, not of {role}"
        raise BadField("users", "invalid_users", why)
    scopes = None if body.scopes is None else frozenset(body.scopes)
    if scopes is not None and not (scopes and scopes <= SCOPES[role]):
        allowed = ", ".join(scope_names(SCOPES[role]))
        why = f"Invalid scopes: a token of the role {role} has one or more of {allowed}"
        raise BadField("scopes", "invalid_scopes", why)
    users = tuple(dict.fromkeys(body.users))
    expires_at = after(now, body.expires_in)
    return TokenRecord("", "", body.name, role, user_id, users, scopes, now, by, expires_at)


def _role(text: str) -> Role:
    """Raises BadField."""
    if text not in TOKEN_ROLES:
        why = f"role should be one of {', '.join(TOKEN_ROLES)}, not {text[:32]!r}"
        raise BadField("role", "invalid_role", why)
    return Role(text)


def _cursor(text: str | None) -> tuple[Micros, str] | None:
    """Raises BadField."""
    if text is None:
        return None
    time, _, last = text.partition(".")
    number = whole_number(time, most=2**63 - 1)
    if number is None or not last:
        why = f"cursor should be what a page before gave as next, not {text[:32]!r}"
        raise BadField("cursor", "invalid_cursor", why)
    return number, last


def scope_names(scopes: Iterable[Scope]) -> list[wire.ScopeName]:
    found = set(scopes)
    return [scope.value for scope in Scope if scope in found]


def time_or_none(at: Micros | None) -> datetime | None:
    return None if at is None else utc(at)


def token_document(record: TokenRecord, now: Micros) -> TokenDoc:
    return TokenDoc(**token_fields(record, now))


def token_fields(record: TokenRecord, now: Micros) -> Mapping[str, Any]:
    former = record.former_until
    return shown(record, TokenDoc) | {
        "role": record.role.value,
        "scopes": scope_names(record.effective_scopes),
        "state": "live"
        if record.live(now)
        else "expired"
        if record.revoked_at is None
        else "revoked",
        "former_until": time_or_none(former) if former is not None and former > now else None,
    }


_NO_STORE: Final = {"Cache-Control": "no-store"}
_OPEN: Final = (
    'this server answers without a token, too: set [server] auth = "token" to change that'
)


async def create(request: web.Request, context: Context) -> web.StreamResponse:
    """Make a token; its text is in this answer only."""
    body = await read_body(request, NewTokenBody)
    new = new_token(body, request[PRINCIPAL].name, context.core.clock.now())
    record, text = await context.access.tokens.create(new)
    request[TARGET] = record.id
    return json_answer(_shown_once(context, record, text), HTTPStatus.CREATED, _NO_STORE)


async def page(request: web.Request, context: Context) -> TokenPage:
    """The tokens, newest first, without their secrets."""
    limit = int_param(request, "limit", 500, 1, 1_000)
    return await token_page(context, request.query, limit)


async def revoke(request: web.Request, context: Context) -> TokenDoc:
    """Refuse the token from now on."""
    record = await context.access.tokens.revoke(
        request.match_info["token"], request[PRINCIPAL].name
    )
    return token_document(record, context.core.clock.now())


async def rotate(request: web.Request, context: Context) -> web.StreamResponse:
    """Give the token another secret; its text is in this answer only."""
    body = await read_body(request, RotateBody)
    record, text = await context.access.tokens.rotate(
        request.match_info["token"], body.overlap, body.expires_in, request[PRINCIPAL].name
    )
    return json_answer(_shown_once(context, record, text), HTTPStatus.OK, _NO_STORE)


async def whoami(request: web.Request, context: Context) -> WhoAmI:
    """Whose request this is, and what it may do."""
    principal = request[PRINCIPAL]
    token = context.access.tokens.record(principal.token_id) if principal.token_id else None
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
        token_needed=context.access.known.needed,
    )


def _shown_once(context: Context, record: TokenRecord, text: str) -> NewTokenDoc:
    fields = token_fields(record, context.core.clock.now())
    return NewTokenDoc(**fields, token=text, message="" if context.access.known.needed else _OPEN)


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
    Route("POST", TOKENS, Area.ADMIN, create, {201: wire.NewTokenDoc}, body=_NEW_TOKEN),
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
    Route("POST", f"{TOKEN}/rotate", Area.ADMIN, rotate, {200: wire.NewTokenDoc}, body=_ROTATION),
)
