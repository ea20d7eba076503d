"""Orders with their small bundles, many in one request, and the acknowledgements that wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from server.agents import forms
from server.agents.acknowledgements import Acknowledgements
from server.agents.forms import Form
from server.agents.orders import size_in_request
from server.ports import RefusedByAgent
from shared.wire import Order, OrderAnswer, PayloadsAnswer, PayloadsRequest

MAX_BUNDLE: Final = 256 << 10
"""Bytes of a bundle that goes with others."""


class OrderWithBundle(NamedTuple):
    """An order, and its bundle.

    Attributes:
        bundle: empty: the agent has it.
    """

    order: Order
    bundle: bytes = b""

    @property
    def size(self) -> int:
        """About as many bytes as it takes in a request."""
        return size_in_request(self.order.env, self.order.meta) + len(self.bundle)


async def send(
    orders: Sequence[OrderWithBundle],
    post: Callable[[Form], Awaitable[bytes]],
    acknowledgements: Acknowledgements,
    server: str,
) -> list[OrderAnswer]:
    """An answer for each of the orders.

    Args:
        post: makes the request.
        acknowledgements: of these some go with it.
        server: who acknowledges.

    Raises:
        AgentError
        ValueError: it is no answer to that.
    """
    taken = acknowledgements.take()
    head = PayloadsRequest(
        orders=[one.order for one in orders],
        sizes=[len(one.bundle) for one in orders],
        server=server,
        acknowledge=[ref for ref, _ in taken],
    )
    form = forms.together(head.model_dump_json(), [one.bundle for one in orders if one.bundle])
    answer = None
    try:
        answer = PayloadsAnswer.model_validate_json(await post(form))
    except RefusedByAgent as no:
        no.final = False  # it is the request that it does not take: no bundle is at fault
        raise
    finally:
        if answer is None:
            acknowledgements.put_back(taken)
        else:
            acknowledgements.answered(taken, answer.refused)
    if len(answer.answers) != len(orders):
        raise ValueError("it has not answered each order")
    return answer.answers
