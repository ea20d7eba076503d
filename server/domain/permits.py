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
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from server.domain.access import check_may_read
from server.domain.errors import FerrymanError, invalid
from server.domain.field_values import unknown_field
from server.domain.jobs import Job
from server.domain.service import Service
from server.domain.upload_fields import HEADER, NEEDED, check_field, upload_request
from shared.clock import SECOND, Micros, say_time
from shared.principals import Principal, Role
from shared.units.durations import parse_duration, say_duration
from shared.units.sizes import parse_size

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
class Login:
    """The right to log a browser in once.

    Attributes:
        id: different for every one.
        token_digest: keyed, of the token that made it, if that is one of the settings.
    """

    id: str
    expires_at: Micros
    token_id: str | None = None
    token_digest: str | None = None


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

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


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


TICKET_FIELDS: Final = ("user_id", "service", "expires_in", "max_bytes", "fields", "return_to")
LINK_FIELDS: Final = ("what", "path", "expires_in")
_TICKET_S: Final = 900.0
_LINK_S: Final = 86_400.0
_MAX_FIELDS: Final = 4 << 10
"""Characters of a ticket's fields: they stand in an address, which has bounds everywhere."""
_MAX_PATH: Final = 2_000


def ticket(
    asked: Mapping[str, Any],
    services: Mapping[str, Service],
    principal: Principal,
    now: Micros,
    ticket_id: str,
    origins: Collection[str],
) -> Ticket:
    """The ticket that is asked for. Raises BadField, NotAllowed. ``origins``: to which
    ``return_to`` may lead.
    """
    _check_names(asked, TICKET_FIELDS)
    user = _text(asked, "user_id") or ""
    check_field("user_id", user, services, principal)
    fields = _fields(asked)
    if "after" in fields:
        check_may_read(principal, "after")  # the links of its upload show how those jobs ended
    service = _text(asked, "service")
    if service is not None:
        fields["service"] = service
        upload_request({**fields, "user_id": user}, services, principal)
    else:
        for name, value in fields.items():
            check_field(name, value, services, principal)
    return Ticket(
        id=ticket_id,
        issued_by=principal.name,
        user_id=user,
        expires_at=now + _expires_in(asked, _TICKET_S, MAX_TICKET_S),
        token_id=principal.token_id,
        max_bytes=_max_bytes(asked),
        fields=fields,
        return_to=_return_to(_text(asked, "return_to"), origins),
        issuer=principal.caller,
    )


def link(asked: Mapping[str, Any], job: Job, principal: Principal, now: Micros) -> Link:
    """The link to the job that is asked for. Raises BadField."""
    _check_names(asked, LINK_FIELDS)
    what, path = _text(asked, "what") or Shows.JOB, _text(asked, "path") or ""
    if what not in list(Shows):
        raise invalid("what", f"it should be one of {', '.join(Shows)}, not {what[:32]!r}")
    if (what == Shows.FILE) != bool(path):
        why = "a link with what: file needs the path of one" if not path else "only a file has one"
        raise invalid("path", why)
    if len(path) > _MAX_PATH:
        raise invalid("path", f"it is longer than {_MAX_PATH} characters")
    return Link(
        issued_by=principal.name,
        job_id=job.id,
        shows=Shows(what),
        expires_at=now + _expires_in(asked, _LINK_S, MAX_LINK_S),
        token_id=principal.token_id,
        path=path,
        issuer=principal.caller,
    )


def _check_names(asked: Mapping[str, Any], known: Collection[str]) -> None:
    for name in asked:
        if name not in known:
            raise unknown_field(name, known)


def _text(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is None or isinstance(value, str):
        return value
    raise invalid(name, "it should be text")


def _fields(asked: Mapping[str, Any]) -> dict[str, str]:
    """Fields of the form that the ticket fixes."""
    given = asked.get("fields") or {}
    if not isinstance(given, dict):
        raise invalid("fields", 'they should be an object, as {"tags": "a"}')
    found = {}
    for name, value in given.items():
        if name in (*NEEDED, HEADER):
            why = f"give {name} beside fields" if name in NEEDED else f"no {name} here"
            raise invalid("fields", why)
        if not isinstance(value, str) or not value:
            raise invalid("fields", f"{name[:64]} should be text, as a form would send it")
        found[name] = value
    if sum(map(len, (*found, *found.values()))) > _MAX_FIELDS:
        why = f"they have more than {_MAX_FIELDS} characters, too many for an address"
        raise invalid("fields", why)
    return found


def _expires_in(asked: Mapping[str, Any], default_s: float, most_s: float) -> Micros:
    """Seconds, or a duration as in ``15m``."""
    value = asked.get("expires_in")
    if value is None:
        return round(default_s * SECOND)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        seconds = float(value) if number else parse_duration(value if type(value) is str else "?")
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 < seconds <= most_s:
        wanted = f"it should be a duration up to {say_duration(most_s)}, as in 15m, or seconds"
        raise invalid("expires_in", f"{wanted}; not {str(value)[:32]!r}")
    return round(seconds * SECOND)


def _max_bytes(asked: Mapping[str, Any]) -> int | None:
    value = asked.get("max_bytes")
    if value is None:
        return None
    try:
        size = parse_size(value) if isinstance(value, str) else value
    except ValueError:
        size = -1
    if type(size) is not int or not 0 < size < 2**63:
        why = f"it should be a size, as in 100MB, or bytes; not {str(value)[:32]!r}"
        raise invalid("max_bytes", why)
    return size


def _return_to(address: str | None, origins: Collection[str]) -> str | None:
    """Only where the operator allows it: nobody is led from here to a stranger's page."""
    if not address:
        return None
    try:
        parts = urlsplit(address[:_MAX_PATH])  # it normalizes letters, which may take long
        origin = f"{parts.scheme}://{parts.netloc}".lower()
    except ValueError:
        origin = ""
    plain = address.isascii() and address.isprintable() and not set(" \\") & set(address)
    if len(address) > _MAX_PATH or not plain or origin not in origins:
        there = ", ".join(sorted(origins)) or "none: the operator sets allowed_origins"
        why = f"it should be a page of an origin that is allowed here ({there})"
        raise invalid("return_to", why)
    return address
