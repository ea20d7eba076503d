"""The documents about tokens, about their holder, and of the audit trail."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import AwareDatetime, Field

from ferryman.models import Wire

RoleName: TypeAlias = Literal["user", "portal", "operator", "agent"]
"""What a principal is for."""
ScopeName: TypeAlias = Literal["read", "submit", "manage", "operate", "admin"]
"""What a token may be used for."""


class TokenDoc(Wire):
    """A token, without its secret."""

    id: str
    """It is in the token's text, and no secret."""
    name: str
    """Of the principal whose it is; several tokens may have the same."""
    role: RoleName
    user_id: str | None = None
    """Of a ``user``: whose jobs these are."""
    users: list[str] = Field(default_factory=list)
    """Of a ``portal``: patterns of the users for whom it may act; empty: any."""
    scopes: list[ScopeName]
    state: Literal["live", "expired", "revoked"]
    created_at: AwareDatetime
    created_by: str
    expires_at: AwareDatetime | None = None
    """None: it does not expire."""
    last_used_at: AwareDatetime | None = None
    last_used_from: str | None = None
    """Address of the latest request with it."""
    revoked_at: AwareDatetime | None = None
    former_until: AwareDatetime | None = None
    """Until when the secret from before its latest rotation is good, too."""


class NewTokenDoc(TokenDoc):
    """A token that was made or rotated just now, with its text."""

    token: str
    """To be sent as ``Authorization: Bearer …``. It is shown this once."""
    message: str = ""
    """What whoever made it should know."""


class TokenPage(Wire):
    """``GET /api/v1/tokens``."""

    items: list[TokenDoc]
    next: str | None
    """Cursor of the next page; None on the last."""


class WhoAmI(Wire):
    """Whose request it is, as the server sees it."""

    name: str
    role: RoleName
    user_id: str | None = None
    """Of a ``user``: whose jobs it sees."""
    users: list[str] = Field(default_factory=list)
    """Of a ``portal``: patterns of the users for whom it may act; empty: any."""
    acts_as: str | None = None
    """Of a ``portal``: the user for whom it made this request."""
    scopes: list[ScopeName]
    token_id: str | None = None
    """None: no API token was sent."""
    expires_at: AwareDatetime | None = None
    """Of the token."""
    token_needed: bool
    """False: the server answers requests without a token as those of an operator."""


class AuditDoc(Wire):
    """A request that changed something, or was to."""

    seq: int
    at: AwareDatetime
    principal: str
    """The name of whoever made it."""
    role: RoleName | Literal["ticket", "link", "metrics"] | None = None
    """None: without a good token."""
    token_id: str | None = None
    acts_as: str | None = None
    """The user for whom a portal made it."""
    action: str
    """Method and route, as in ``POST /api/v1/jobs/{id}/cancel``."""
    target: str = ""
    """What it was about, such as the number of a job."""
    status: int | None = None
    """Of the answer; None: the caller left before it."""
    code: str | None = None
    """Of a refusal."""
    peer: str
    """Address that it came from."""
    request_id: str
    left_out: int = 0
    """So many refused requests before it are in no entry, because there were too many."""


class AuditPage(Wire):
    """``GET /api/v1/audit``."""

    items: list[AuditDoc]
    next: str | None
    """Cursor of the next page; None on the last."""
