"""API tokens as requests and answers have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, field_validator

from server.domain.errors import BadField
from server.domain.tokens import NAME, RESERVED, TokenRecord
from server.domain.upload_fields import USER_ID
from server.http.context import Context
from server.http.params import JsonBody
from server.stages.tokens import NewToken
from server.store.tokens import TokenFilter
from shared import wire
from shared.clock import Micros, utc
from shared.http.numbers import whole_number
from shared.principals import SCOPES, TOKEN_ROLES, Role, Scope
from shared.units.durations import Duration
from shared.wire import TokenDoc, TokenPage

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
    now = context.tokens.now()
    which = TokenFilter(
        chosen.get("name"),
        None if role is None else _role(role),
        chosen.get("user"),
        now if every in ("0", "false") and "id" not in chosen else None,
        chosen.get("id"),
    )
    found = await context.tokens.page(which, limit + 1, _cursor(chosen.get("cursor")))
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else f"{last.created_at}.{last.id}"
    return TokenPage(items=[token_document(one, now) for one in found[:limit]], next=following)


def new_token(body: NewTokenBody) -> NewToken:
    """Raises BadField."""
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
    return NewToken(body.name, role, user_id, users, scopes, body.expires_in)


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
    return {
        "id": record.id,
        "name": record.name,
        "role": record.role.value,
        "user_id": record.user_id,
        "users": list(record.users),
        "scopes": scope_names(record.effective_scopes),
        "state": "live"
        if record.live(now)
        else "expired"
        if record.revoked_at is None
        else "revoked",
        "created_at": time_or_none(record.created_at),
        "created_by": record.created_by,
        "expires_at": time_or_none(record.expires_at),
        "last_used_at": time_or_none(record.last_used_at),
        "last_used_from": record.last_used_from,
        "revoked_at": time_or_none(record.revoked_at),
        "former_until": time_or_none(former) if former is not None and former > now else None,
    }
