"""Webhooks: the log of their deliveries, sending them again, and the secret of their signatures."""

from __future__ import annotations

from typing import Final, get_args

from aiohttp import web

from server.domain.access import Area
from server.domain.errors import BadField, NotAllowed
from server.domain.webhooks import Delivery, Signer, SignerKind
from server.http.context import Context
from server.http.parameter_types import MAX_ID, choice, word
from server.http.params import int_param, job_id
from server.http.paths import JOB
from server.http.problems import Refusal
from server.http.query import paging
from server.http.route import Route
from server.ports.webhooks import DeliveryFilter
from server.stages.read import read_job
from shared import webhook_wire
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.http.numbers import whole_number
from shared.principals import Role, Scope
from shared.webhook_wire import DeliveryDoc, DeliveryPage, DeliveryState, DeliveryTry, WebhookSecret

_DELIVERY: Final = "/api/v1/deliveries/{delivery}"
_STATES: Final[tuple[str, ...]] = get_args(DeliveryState)
_MAX_NAME: Final = 200


async def of_job(request: web.Request, context: Context) -> DeliveryPage:
    """The webhooks that a job has announced, newest first."""
    wanted = job_id(request)
    await read_job(context.jobs, request[PRINCIPAL], wanted)
    return await _page(request, context, wanted)


async def of_all(request: web.Request, context: Context) -> DeliveryPage:
    """The webhooks of all jobs that the caller may see, newest first."""
    return await _page(request, context, None)


async def read(request: web.Request, context: Context) -> DeliveryDoc:
    """A delivery, with its latest tries."""
    return await _answer(request, context)


async def replay(request: web.Request, context: Context) -> DeliveryDoc:
    """Send a webhook again, now, under the id that it had."""
    await context.webhooks.replay(request[PRINCIPAL], _number(request))
    return await _answer(request, context)


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


async def _page(request: web.Request, context: Context, wanted: int | None) -> DeliveryPage:
    limit = int_param(request, "limit", 100, 1, 500)
    before = int_param(request, "cursor", 0, 0, MAX_ID) or None
    state = request.query.get("state")
    if state is not None and state not in _STATES:
        why = f"Invalid state: {state[:32]!r} is none of {', '.join(_STATES)}"
        raise BadField("state", "invalid_state", why)
    found, following = await context.webhooks.page(
        request[PRINCIPAL], DeliveryFilter(wanted, state), before, limit
    )
    items = [_document(context, one) for one in found]
    return DeliveryPage(items=items, next=None if following is None else str(following))


async def _answer(request: web.Request, context: Context) -> DeliveryDoc:
    delivery, tries = await context.webhooks.read(request[PRINCIPAL], _number(request))
    tried = [
        DeliveryTry(
            number=one.number,
            at=utc(one.at),
            seconds=one.seconds,
            status=one.status,
            problem=one.problem,
        )
        for one in tries
    ]
    return _document(context, delivery).model_copy(update={"tried": tried})


def _number(request: web.Request) -> int:
    """The delivery that the path names.

    Raises:
        Refusal: no number, or none that a delivery can have.
    """
    text = request.match_info["delivery"]
    number = whole_number(text, most=MAX_ID)
    if number is None:
        raise Refusal(404, "delivery_not_found", f"{text[:20]!r} is not the number of a delivery")
    return number


def _document(context: Context, delivery: Delivery) -> DeliveryDoc:
    return DeliveryDoc(
        id=delivery.id,
        webhook_id=context.webhooks.webhook_id(delivery),
        job_id=delivery.job_id,
        service=delivery.service,
        url=delivery.url,
        event=delivery.event,
        state=delivery.state,
        message=delivery.message,
        tries=delivery.tries,
        next_at=None if delivery.next_at is None else utc(delivery.next_at),
        created_at=utc(delivery.created_at),
        ended_at=None if delivery.ended_at is None else utc(delivery.ended_at),
    )


_LIST: Final = {"state": choice("only in this state", _STATES), **paging(100, 500)}

ROUTES: Final = (
    Route(
        "GET",
        f"{JOB}/deliveries",
        Area.JOBS,
        of_job,
        {200: webhook_wire.DeliveryPage},
        (),
        _LIST,
    ),
    Route(
        "GET",
        "/api/v1/deliveries",
        Area.JOBS,
        of_all,
        {200: webhook_wire.DeliveryPage},
        (),
        _LIST,
    ),
    Route("GET", _DELIVERY, Area.JOBS, read, {200: webhook_wire.DeliveryDoc}),
    Route("POST", f"{_DELIVERY}/replay", Area.JOBS, replay, {200: webhook_wire.DeliveryDoc}),
    Route(
        "GET",
        "/api/v1/webhook-secret",
        Area.JOBS,
        secret,
        {200: webhook_wire.WebhookSecret},
        ("service_not_found",),
        {
            "principal": word("for operators: whose jobs", _MAX_NAME),
            "service": word("for operators: the service whose webhook it is", _MAX_NAME),
        },
        needs=Scope.SUBMIT,
    ),
)
