"""What people without an account may do: an upload by a ticket, a look by a signed link; and what
logs a browser in, and keeps it so.

They are texts that the server signs and does not store: ``PAYLOAD.SIGNATURE``, in the alphabet of
URLs. The signature is of the payload's text, and compared as text: no other spelling is valid.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from server.domain.errors import FerrymanError
from shared.clock import Micros, say_time
from shared.principals import Principal, Role

MAX_TICKET_S: Final = 86_400.0
MAX_LINK_S: Final = 30 * 86_400.0
LOGIN_S: Final = 60.0
LINK_OF_UPLOAD_S: Final = 86_400.0
"""Of the link to the job that an upload by ticket became."""
_LONGEST: Final = 32 << 10


class Shows(StrEnum):
    """What a signed link shows of its job."""

    JOB = "job"
    """All that there is to read."""
    RESULT = "result"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Issued:
    """Attributes:
    issued_by: name of the principal who made it.
    token_id: of the token that made it; None: that has no id.
    issuer: as :attr:`Principal.caller` says.
    """

    issued_by: str
    expires_at: Micros
    token_id: str | None = None
    issuer: str = ""

    def _principal(self, name: str, role: Role) -> Principal:
        return Principal(name, role, token_id=self.token_id, issuer=self.issuer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket(_Issued):
    """The right to upload once. The job counts as submitted by who made it.

    Attributes:
        id: different for every ticket.
        user_id: whose job it becomes.
        max_bytes: of the upload; None: what the server takes.
        fields: of the form, which cannot be changed; the service may be one of them.
        return_to: where a plain form is sent on to; None: the job's page.
    """

    id: str
    user_id: str
    max_bytes: int | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    return_to: str | None = None

    def principal(self) -> Principal:
        return replace(self._principal(self.issued_by, Role.TICKET), acts_as=self.user_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(_Issued):
    """The right to read one job, or a part of it: ``path`` is that of a file."""

    job_id: int
    shows: Shows
    path: str = ""

    def principal(self) -> Principal:
        name = f"{self.issued_by} (link to job {self.job_id})"
        return replace(self._principal(name, Role.LINK), job_id=self.job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a browser shows that has logged in.

    Attributes:
        token_id: of the token that it logged in with; None: that is one of the settings.
        token_digest: keyed, of that one.
        ended_before: how often the sessions of the token were ended before it began.
    """

    expires_at: Micros
    token_id: str | None = None
    token_digest: str | None = None
    ended_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Login(Session):
    """The right to begin a session of the token that made it, once.

    Attributes:
        id: different for every one.
    """

    id: str


Permit = TypeVar("Permit", Ticket, Link, Login, Session)
_WORDS: Final[Mapping[type, str]] = {
    Ticket: "ticket",
    Link: "link",
    Login: "login link",
    Session: "session",
}


_READERS: Final = {kind: TypeAdapter[Any](kind) for kind in _WORDS}


class PermitRefused(FerrymanError):
    """A ticket or link is not good, or not for this."""


class TicketUsed(PermitRefused):
    """It became a job before."""

    def __init__(self) -> None:
        super().__init__(
            "ticket_used",
            "this upload ticket was used before, and is good for one upload: "
            "go back to the page that gave it to you, which can get another one",
        )


class LoginUsed(PermitRefused):
    """A link that logs in was used before."""

    def __init__(self) -> None:
        super().__init__(
            "login_link_used",
            "this login link was used before, and is good once: ask for another one "
            "(ferryman dashboard), or log in with a token",
        )


class Permits:
    """Makes tickets, links and sessions, and knows its own.

    Args:
        key: secret; with another one, all that were made are worthless.
        revoked: whether the token with this id was revoked: what it made is then worthless.
    """

    def __init__(self, key: bytes, revoked: Callable[[str], bool] = lambda _: False) -> None:
        self._key, self._revoked = key, revoked

    def text(self, permit: Ticket | Link | Login | Session) -> str:
        """What to hand out."""
        values = {name: value for name, value in asdict(permit).items() if value}
        content = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
        payload = _encoded(content)
        return f"{payload}.{self._signature(type(permit), payload)}"

    def read(self, kind: type[Permit], text: str, now: Micros) -> Permit:
        """The ticket, link, login link or session that a request shows. Raises PermitRefused: none
        of ours, expired, or its token was revoked.
        """
        payload, _, signature = text[:_LONGEST].rpartition(".")
        good = self._signature(kind, payload)
        if not hmac.compare_digest(good.encode(), signature.encode("utf-8", "surrogateescape")):
            why = "some of it was changed or left out on its way; copy it whole"
            raise _refused(kind, "invalid", f"is not valid: {why}")
        # A later version of the server may have signed more: what is not known is left out.
        content = base64.urlsafe_b64decode(payload + "==")
        permit: Permit = _READERS[kind].validate_json(content)
        if permit.token_id is not None and self._revoked(permit.token_id):
            why = "the token that made it was revoked"
            raise _refused(kind, "revoked", f"is not valid any more: {why}", ";")
        if now >= permit.expires_at:
            raise _refused(kind, "expired", f"expired at {say_time(permit.expires_at)}", ";")
        return permit

    def keyed_digest(self, text: str) -> str:
        """Of what a permit names and does not show: nobody without the key can try what it is."""
        return _encoded(hmac.digest(self._key, f"digest.{text}".encode(), hashlib.sha256))

    def _signature(self, kind: type, payload: str) -> str:
        # The kind is signed, too: a link is no ticket.
        text = f"{_WORDS[kind]}.{payload}".encode("utf-8", "surrogateescape")
        return _encoded(hmac.digest(self._key, text, hashlib.sha256))


def _refused(kind: type, why: str, text: str, end: str = ", or") -> PermitRefused:
    word = _WORDS[kind]
    code = f"{word.replace(' ', '_')}_{why}"
    return PermitRefused(code, f"this {word} {text}{end} ask for another one")


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
