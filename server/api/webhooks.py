"""Webhooks: the log of their deliveries, sending them again, and the secret of their signatures."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.access import Area
from server.domain.errors import BadField, NotAllowed
from server.domain.webhooks import Signer, SignerKind
from server.http.context import Context
from server.http.deliveries import (
    DELIVERY_STATES,
    delivery_number,
    delivery_page,
    delivery_read,
)
from server.http.params import choice, job_id, paging, word
from server.http.route import JOB, Route
from server.stages.read import read_job
from shared import wire
from shared.http.authentication import PRINCIPAL
from shared.principals import Role, Scope
from shared.wire import DeliveryDoc, DeliveryPage, WebhookSecret

_DELIVERY: Final = "/api/v1/deliveries/{delivery}"
_MAX_NAME: Final = 200


async def of_job(request: web.Request, context: Context) -> DeliveryPage:
    """The webhooks that a job has announced, newest first."""
    wanted = job_id(request)
    await read_job(context.jobs, request[PRINCIPAL], wanted)
    return await delivery_page(request, context, wanted, request.query.get("state"))


async def of_all(request: web.Request, context: Context) -> DeliveryPage:
    """The webhooks of all jobs that the caller may see, newest first."""
    return await delivery_page(request, context, None, request.query.get("state"))


async def read(request: web.Request, context: Context) -> DeliveryDoc:
    """A delivery, with its latest tries."""
    return await delivery_read(request, context)


async def replay(request: web.Request, context: Context) -> DeliveryDoc:
    """Send a webhook again, now, under the id that it had."""
    await context.webhooks.replay(request[PRINCIPAL], delivery_number(request))
    return await delivery_read(request, context)


async def secret(request: web.Request, context: Context) -> WebhookSecret:
    """The secret that signs the webhooks of the caller's jobs; for operators also of others."""
    principal = request[PRINCIPAL]
    asked = [kind for kind in SignerKind if kind in request.query]
    if len(asked) > 1:
        raise BadField("service", "invalid_service", "give principal or service, not both")
    signer = Signer(SignerKind.PRINCIPAL, principal.name)
    if asked:
        name = request.query[asked[0]]
        if not 0 < len(name) <= _MAX_NAME:
            why = f"{asked[0]} should be a name of at most {_MAX_NAME} characters"
            raise BadField(asked[0], f"invalid_{asked[0]}", why)
        wanted = Signer(asked[0], name)
        if wanted != signer and principal.role is not Role.OPERATOR:
            raise NotAllowed(f"{principal.name} may read its own webhook secret only")
        if wanted.kind is SignerKind.SERVICE:
            context.services.find(name)
        signer = wanted
    return WebhookSecret(of=str(signer), secrets=context.webhooks.secrets(signer))


_LIST: Final = {"state": choice("only in this state", DELIVERY_STATES), **paging(100, 500)}

ROUTES: Final = (
    Route(
        "GET",
        f"{JOB}/deliveries",
        Area.JOBS,
        of_job,
        {200: wire.DeliveryPage},
        _LIST,
    ),
    Route(
        "GET",
        "/api/v1/deliveries",
        Area.JOBS,
        of_all,
        {200: wire.DeliveryPage},
        _LIST,
    ),
    Route("GET", _DELIVERY, Area.JOBS, read, {200: wire.DeliveryDoc}),
    Route("POST", f"{_DELIVERY}/replay", Area.JOBS, replay, {200: wire.DeliveryDoc}),
    Route(
        "GET",
        "/api/v1/webhook-secret",
        Area.JOBS,
        secret,
        {200: wire.WebhookSecret},
        {
            "principal": word("for operators: whose jobs", _MAX_NAME),
            "service": word("for operators: the service whose webhook it is", _MAX_NAME),
        },
        needs=Scope.SUBMIT,
    ),
)
