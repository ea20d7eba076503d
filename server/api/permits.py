"""Upload tickets and signed links, for people without a token; links that log browsers in."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

from aiohttp import web

from server.domain import permits
from server.domain.access import Area
from server.domain.permits import Shows
from server.http.context import Context
from server.http.params import json_body
from server.http.permits import address, login_path, made_link
from server.http.requested_job import requested_job
from server.http.route import JOB, TICKET_PARAMETER, Body, Route, json_answer
from shared import wire
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.principals import Scope
from shared.wire import LoginLinkDoc, TicketDoc

_MAX_BODY: Final = 64 << 10


async def make_ticket(request: web.Request, context: Context) -> web.StreamResponse:
    """Make an upload ticket: the right to upload once, for a browser that has no token."""
    ticket = permits.ticket(
        await json_body(request, _MAX_BODY),
        context.services,
        request[PRINCIPAL],
        context.clock.now(),
        secrets.token_hex(8),
        context.settings.server.origins,
    )
    text = context.permits.text(ticket)
    body = TicketDoc(
        ticket=text,
        upload_url=address(request, context, "/upload", **{TICKET_PARAMETER: text}),
        expires_at=utc(ticket.expires_at),
    )
    return json_answer(body, HTTPStatus.CREATED)


async def make_link(request: web.Request, context: Context) -> web.StreamResponse:
    """Make a signed link to a job, its result or one file of it."""
    job = await requested_job(request, context)
    asked = await json_body(request, _MAX_BODY) if request.body_exists else {}
    _, link = made_link(request, context, job, asked)
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
            "user_id": {
                "type": "string",
                "pattern": "^[A-Za-z0-9._@-]{1,64}$",
                "description": "whose job it becomes",
            },
            "service": {"type": "string", "description": "fixed; without it the form says which"},
            "expires_in": {
                "type": ["string", "number"],
                "description": "a duration of up to 24h, or seconds; 15m without it",
            },
            "max_bytes": {
                "type": ["string", "integer"],
                "description": "most that the upload may have: a size as in 100MB, or bytes",
            },
            "fields": {
                "type": "object",
                "additionalProperties": {"type": "string", "minLength": 1},
                "description": "further fields of the form, which cannot be changed",
            },
            "return_to": {
                "type": "string",
                "description": "page that a plain form is sent on to, of an origin that is allowed",
            },
        },
    },
    {"user_id": "1", "service": "example", "expires_in": "15m", "max_bytes": "100MB"},
)
_LINK: Final = Body(
    "application/json",
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "what": {
                "type": "string",
                "enum": list(Shows),
                "default": Shows.JOB,
                "description": "what it shows",
            },
            "path": {"type": "string", "description": "of the file, with what: file"},
            "expires_in": {
                "type": ["string", "number"],
                "description": "a duration of up to 30d, or seconds; 1d without it",
            },
        },
    },
    {"what": "result", "expires_in": "7d"},
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
