"""API tokens: their text, what is kept of them, and whose they are.

A token is ``ferryman_<id>_<secret><checksum>``. The id is no secret: lists show it. Of the secret
only the digest is kept. The checksum tells a mistyped token from one that is not known.
"""

from __future__ import annotations

import hashlib
import re
import string
import zlib
from dataclasses import dataclass
from typing import Final

from server.domain.errors import NotFound
from shared.clock import SECOND, Micros
from shared.principals import SCOPES, Principal, Role, Scope

PREFIX: Final = "ferryman_"
ID_LETTERS: Final = string.digits + string.ascii_lowercase
ID_LENGTH: Final = 10
LETTERS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
SECRET_LENGTH: Final = 32
"""190 bits."""
_CHECKSUM_LENGTH: Final = 6
_LENGTH: Final = len(PREFIX) + ID_LENGTH + 1 + SECRET_LENGTH + _CHECKSUM_LENGTH
_TEXT: Final = re.compile(
    rf"{PREFIX}([0-9a-z]{{{ID_LENGTH}}})_"
    rf"([0-9A-Za-z]{{{SECRET_LENGTH}}})([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)

NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
"""Of a principal."""
RESERVED: Final = re.compile(r"anonymous|local|token-[0-9]+")
"""Names of those who have no API token."""


class BadToken(Exception):
    """The text is no token; the message says why, and repeats nothing of it."""


class NoSuchToken(NotFound):
    def __init__(self, token_id: str) -> None:
        super().__init__(
            "token_not_found", f"this server has no token with the id {token_id[:64]!r}"
        )


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is kept of a token.

    Attributes:
        digest: SHA-256 of its secret, in hexadecimal.
        name: of the principal whose it is; several tokens may have the same.
        scopes: None: all of its role's.
        former_digest: of the secret before the latest rotation, good until ``former_until``.
    """

    id: str
    digest: str
    name: str
    role: Role
    user_id: str | None
    users: tuple[str, ...]
    scopes: frozenset[Scope] | None
    created_at: Micros
    created_by: str
    expires_at: Micros | None = None
    revoked_at: Micros | None = None
    former_digest: str | None = None
    former_until: Micros | None = None
    last_used_at: Micros | None = None
    last_used_from: str | None = None

    @property
    def principal(self) -> Principal:
        return Principal(
            self.name, self.role, self.user_id, self.scopes, self.users, token_id=self.id
        )

    @property
    def effective_scopes(self) -> frozenset[Scope]:
        return SCOPES[self.role] if self.scopes is None else self.scopes & SCOPES[self.role]

    def live(self, now: Micros) -> bool:
        """Whether requests with it are accepted."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def after(now: Micros, seconds: float | None) -> Micros | None:
    """When so much time has passed; None: never."""
    return None if seconds is None else now + round(seconds * SECOND)


def text_of(token_id: str, secret: str) -> str:
    """The token as it is shown once, and sent with each request."""
    body = f"{PREFIX}{token_id}_{secret}"
    return body + _checksum(body)


def read(text: str) -> tuple[str, str]:
    """The id and the secret of a token. Raises BadToken."""
    match = _TEXT.fullmatch(text)
    if match is None:
        if len(text) != _LENGTH:
            why = f"a token has {_LENGTH} characters, this one {len(text)}"
            raise BadToken(f"it is not whole: {why}")
        raise BadToken("it is mistyped: it has a character that no token has")
    if _checksum(text[:-_CHECKSUM_LENGTH]) != match[3]:
        raise BadToken("it is mistyped (its checksum is wrong)")
    return match[1], match[2]


def digest_of(secret: str) -> str:
    """What is kept of a secret. A fast digest will do: nobody can try 62^32 secrets."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _checksum(body: str) -> str:
    rest, letters = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM_LENGTH):
        rest, digit = divmod(rest, len(LETTERS))
        letters = LETTERS[digit] + letters
    return letters
