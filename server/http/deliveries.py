"""The log of webhooks' deliveries, as documents."""

from __future__ import annotations

from typing import Final, get_args

from aiohttp import web

from server.domain.errors import BadField
from server.domain.webhooks import Delivery
from server.http.context import Context
from server.http.params import MAX_ID, int_param
from server.http.problems import Refusal
from server.store.webhooks import DeliveryFilter
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.http.numbers import whole_number
from shared.wire import DeliveryDoc, DeliveryPage, DeliveryState, DeliveryTry

DELIVERY_STATES: Final[tuple[str, ...]] = get_args(DeliveryState)


async def delivery_page(
    request: web.Request, context: Context, wanted: int | None, state: str | None
) -> DeliveryPage:
    """The page of the list that the query asks for, newest first.

    Args:
        wanted: only of this job.
        state: only in this state.
    """
    limit = int_param(request, "limit", 100, 1, 500)
    before = int_param(request, "cursor", 0, 0, MAX_ID) or None
    if state is not None and state not in DELIVERY_STATES:
        why = f"Invalid state: {state[:32]!r} is none of {', '.join(DELIVERY_STATES)}"
        raise BadField("state", "invalid_state", why)
    found, following = await context.webhooks.page(
        request[PRINCIPAL], DeliveryFilter(wanted, state), before, limit
    )
    items = [_document(context, one) for one in found]
    return DeliveryPage(items=items, next=None if following is None else str(following))


async def delivery_read(request: web.Request, context: Context) -> DeliveryDoc:
    """The delivery that the path names, with its latest tries."""
    delivery, tries = await context.webhooks.read(request[PRINCIPAL], delivery_number(request))
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


def delivery_number(request: web.Request) -> int:
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
