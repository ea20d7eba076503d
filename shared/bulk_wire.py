"""The documents about many payloads at once, between server and agent."""

from __future__ import annotations

from pydantic import Field

from shared.wire import Int64, Order, PayloadDoc, Wire


class OrderList(Wire):
    """``POST /orders``: attempts whose bundles the agent has."""

    orders: list[Order]


class OrderAnswer(Wire):
    """What became of one order: its payload, or what a submit of it would be refused with."""

    payload: PayloadDoc | None = None
    status: int = 200
    code: str = ""
    """``bundle_missing``: the bundle has to be sent."""
    message: str = ""
    retry_after_s: float | None = None


class OrderAnswers(Wire):
    """In the order of the list."""

    answers: list[OrderAnswer]


class PayloadRef(Wire):
    """A payload, by its number and key."""

    id: Int64
    key: str | None = None


class PayloadRefs(Wire):
    """``POST /results`` and ``POST /payloads/acknowledge``."""

    payloads: list[PayloadRef]


class ResultHead(Wire):
    """One of the results that follow each other behind this line."""

    id: Int64
    size: Int64 = Field(0, ge=0)
    """0: it is not here."""
    sha256: str = ""


class ResultHeads(Wire):
    """First line of the answer to ``POST /results``: what follows, in the order asked for."""

    results: list[ResultHead]


class Acknowledged(Wire):
    """Answer to ``POST /payloads/acknowledge``."""

    refused: dict[int, str] = Field(default_factory=dict)
    """Payload id -> code, of those that were not forgotten."""


class PayloadsRequest(Wire):
    """First line of ``POST /payloads``: attempts, and what need not be kept any more. Behind it the
    bundles, one after the other."""

    orders: list[Order]
    sizes: list[Int64]
    """Of each order's bundle in this request, in bytes; 0: the agent has it."""
    server: str
    """Identity of the server that acknowledges."""
    lease: Int64 = 0
    acknowledge: list[PayloadRef] = Field(default_factory=list)


class PayloadsAnswer(OrderAnswers):
    """Answer to ``POST /payloads``."""

    refused: dict[int, str] = Field(default_factory=dict)
    """Payload id -> code, of those that were acknowledged and not forgotten."""
