"""Upload tickets and signed links, for people without a token; links that log browsers in."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import urlsplit

from aiohttp import web
from pydantic import Field, field_validator

from server.domain.access import Area, check_may_read
from server.domain.errors import invalid
from server.domain.permits import MAX_TICKET_S, Shows, Ticket
from server.domain.service import Service
from server.domain.upload_fields import HEADER, NEEDED, check_field, upload_request
from server.http.context import Context
from server.http.params import SparseBody, read_body
from server.http.permits import LinkBody, address, login_path, made_link, valid_for
from server.http.requested_job import requested_job
from server.http.route import JOB, TICKET_PARAMETER, Body, Route, json_answer
from shared import wire
from shared.clock import SECOND, utc
from shared.http.authentication import PRINCIPAL
from shared.principals import Principal, Scope
from shared.units.durations import Duration
from shared.units.sizes import Size
from shared.wire import LoginLinkDoc, TicketDoc

_MAX_FIELDS: Final = 4 << 10
"""Characters of a ticket's fields: they stand in an address, which has bounds everywhere."""
_MAX_PATH: Final = 2_000


class TicketBody(SparseBody):
    """What ``POST /api/v1/tickets`` takes."""

    user_id: str = ""
    """Whose job it becomes."""
    service: str | None = None
    """Fixed; without it the form says which."""
    expires_in: Annotated[Duration, valid_for(MAX_TICKET_S)] = 900.0
    """A duration of up to 24h, or seconds; 15m without it."""
    max_bytes: Annotated[Size, Field(gt=0)] | None = None
    """Most that the upload may have: a size as in 100MB, or bytes."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Further fields of the form, which cannot be changed."""
    return_to: str | None = None
    """Page that a plain form is sent on to, of an origin that is allowed."""

    @field_validator("fields")
    @classmethod
    def _fixed(cls, fields: dict[str, str]) -> dict[str, str]:
        for name, value in fields.items():
            if name in (*NEEDED, HEADER):
                raise ValueError(f"give {name} beside fields" if name in NEEDED else f"no {name}")
            if not value:
                raise ValueError(f"{name[:64]} should be text, as a form would send it")
        if sum(map(len, (*fields, *fields.values()))) > _MAX_FIELDS:
            raise ValueError(f"more than {_MAX_FIELDS} characters, too many for an address")
        return fields


async def make_ticket(request: web.Request, context: Context) -> web.StreamResponse:
    """Make an upload ticket: the right to upload once, for a browser that has no token."""
    body, principal = await read_body(request, TicketBody), request[PRINCIPAL]
    ticket = Ticket(
        id=secrets.token_hex(8),
        issued_by=principal.name,
        user_id=body.user_id,
        expires_at=context.core.clock.now() + round(body.expires_in * SECOND),
        token_id=principal.token_id,
        max_bytes=body.max_bytes,
        fields=_checked_fields(body, context.core.services, principal),
        return_to=_return_to(body.return_to, context.core.settings.server.origins),
        issuer=principal.caller,
    )
    text = context.access.permits.text(ticket)
    answer = TicketDoc(
        ticket=text,
        upload_url=address(request, context, "/upload", **{TICKET_PARAMETER: text}),
        expires_at=utc(ticket.expires_at),
    )
    return json_answer(answer, HTTPStatus.CREATED)


def _checked_fields(
    body: TicketBody, services: Mapping[str, Service], principal: Principal
) -> dict[str, str]:
    """Those that the ticket fixes. Raises BadField, NotAllowed."""
    check_field("user_id", body.user_id, services, principal)
    if "after" in body.fields:
        check_may_read(principal, "after")  # the links of its upload show how those jobs ended
    if body.service is None:
        for name, value in body.fields.items():
            check_field(name, value, services, principal)
        return body.fields
    fields = {**body.fields, "service": body.service}
    upload_request({**fields, "user_id": body.user_id}, services, principal)
    return fields


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


async def make_link(request: web.Request, context: Context) -> web.StreamResponse:
    """Make a signed link to a job, its result or one file of it."""
    job = await requested_job(request, context)
    _, link = made_link(request, context, job, await read_body(request, LinkBody))
    return json_answer(link, HTTPStatus.CREATED)


async def make_login_link(request: web.Request, context: Context) -> web.StreamResponse:
    """Make a link that logs a browser in once, as whoever asks for it."""
    path, query, expires_at = login_path(context, request[PRINCIPAL])
    url = address(request, context, path, **query)
    headers = {"Cache-Control": "no-store"}
    return json_answer(LoginLinkDoc(url=url, expires_at=expires_at), 201, headers)


_TICKET: Final = Body(
    "application/json",
    {
        "type": "object",
        "required": ["user_id"],
        "additionalProperties": False,
        "properties": {
            "user_id": {"type": "string", "pattern": "^[A-Za-z0-9._@-]{1,64}$"},
            "service": {"type": "string"},
            "expires_in": {"type": ["string", "number"]},
            "max_bytes": {"type": ["string", "integer"]},
            "fields": {
                "type": "object",
                "additionalProperties": {"type": "string", "minLength": 1},
            },
            "return_to": {"type": "string"},
        },
    },
    {"user_id": "1", "service": "example", "expires_in": "15m", "max_bytes": "100MB"},
    TicketBody,
)
_LINK: Final = Body(
    "application/json",
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "what": {"type": "string", "enum": list(Shows), "default": Shows.JOB},
            "path": {"type": "string"},
            "expires_in": {"type": ["string", "number"]},
        },
    },
    {"what": "result", "expires_in": "7d"},
    LinkBody,
)

ROUTES: Final = (
    Route(
        "POST", "/api/v1/tickets", Area.TICKETS, make_ticket, {201: wire.TicketDoc}, body=_TICKET
    ),
    Route(
        "POST",
        f"{JOB}/links",
        Area.JOBS,
        make_link,
        {201: wire.LinkDoc},
        needs=Scope.READ,
        body=_LINK,
    ),
    Route("POST", "/api/v1/login-links", Area.CALLER, make_login_link, {201: wire.LoginLinkDoc}),
)
