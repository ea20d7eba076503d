"""What is asked for in a request for an upload ticket or a signed link, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from server.domain.access import check_may_read
from server.domain.errors import BadField
from server.domain.jobs import Job
from server.domain.names import hint
from server.domain.permits import MAX_LINK_S, MAX_TICKET_S, Link, Shows, Ticket
from server.domain.service import Service
from server.domain.upload_fields import HEADER, NEEDED, check_field, upload_request
from shared.clock import SECOND, Micros
from shared.principals import Principal
from shared.units.durations import parse_duration, say_duration
from shared.units.sizes import parse_size

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
    """The ticket that is asked for.

    Args:
        origins: to which ``return_to`` may lead.

    Raises:
        BadField, NotAllowed
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
    """The link to the job that is asked for.

    Raises:
        BadField
    """
    _check_names(asked, LINK_FIELDS)
    what, path = _text(asked, "what") or Shows.JOB, _text(asked, "path") or ""
    if what not in list(Shows):
        known = ", ".join(Shows)
        raise BadField("what", "invalid_what", f"what should be one of {known}, not {what[:32]!r}")
    if (what == Shows.FILE) != bool(path):
        why = "a link with what: file needs the path of one" if not path else "only a file has one"
        raise BadField("path", "invalid_path", f"path: {why}")
    if len(path) > _MAX_PATH:
        raise BadField("path", "invalid_path", f"path: it is longer than {_MAX_PATH} characters")
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
            message = f"Unknown field {name[:64]!r}; {hint(name, known)}"
            raise BadField(name[:64], "unknown_field", message)


def _text(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadField(name, f"invalid_{name}", f"{name} should be text")


def _fields(asked: Mapping[str, Any]) -> dict[str, str]:
    """Fields of the form that the ticket fixes."""
    given = asked.get("fields") or {}
    if not isinstance(given, dict):
        raise BadField("fields", "invalid_fields", 'fields should be an object, as {"tags": "a"}')
    found = {}
    for name, value in given.items():
        if name in (*NEEDED, HEADER):
            message = f"fields: give {name} beside fields" if name in NEEDED else f"no {name} here"
            raise BadField("fields", "invalid_fields", message)
        if not isinstance(value, str) or not value:
            message = f"fields: {name[:64]} should be text, as a form would send it"
            raise BadField("fields", "invalid_fields", message)
        found[name] = value
    if sum(map(len, (*found, *found.values()))) > _MAX_FIELDS:
        message = f"fields: they have more than {_MAX_FIELDS} characters, too many for an address"
        raise BadField("fields", "invalid_fields", message)
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
        message = (
            f"expires_in should be a duration up to {say_duration(most_s)}, as in 15m, or seconds; "
            f"not {str(value)[:32]!r}"
        )
        raise BadField("expires_in", "invalid_expires_in", message)
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
        message = f"max_bytes should be a size, as in 100MB, or bytes; not {str(value)[:32]!r}"
        raise BadField("max_bytes", "invalid_max_bytes", message)
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
        message = f"return_to should be a page of an origin that is allowed here ({there})"
        raise BadField("return_to", "invalid_return_to", message)
    return address
