"""The webhooks: what is to be delivered, and what delivers it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from server.domain.access import Visible
from server.domain.webhook_targets import WebhookTarget
from server.domain.webhooks import Delivery, Signer, Try
from shared.clock import Micros


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which deliveries a list is of; None: any."""

    job_id: int | None = None
    state: str | None = None


class Deliveries(Protocol):
    """What is to be delivered; every change is durable when the call returns.

    They are added in the transaction of the move that they are about.
    """

    async def due(
        self, now: Micros, limit: int, *, targets: Collection[str], signers: Collection[Signer]
    ) -> list[Delivery]:
        """Those whose time has come, the longest due first.

        Args:
            targets, signers: whose deliveries are left out.
        """
        ...

    async def next_at(self) -> Micros | None:
        """When one is due next; None: never."""
        ...

    async def oldest(self) -> Micros | None:
        """When the oldest was announced that has not ended; None: all have."""
        ...

    async def begin(self, deliveries: Sequence[Delivery], until: Micros) -> list[Delivery]:
        """Count one more try of each that is still as it was seen, and let it be due again at
        ``until``, for the case that this server dies.

        Returns:
            Those, as they are now.
        """
        ...

    async def end(self, delivery: Delivery, done: Try, next_at: Micros | None) -> bool:
        """Write down how a try went.

        Args:
            next_at: when it is tried again; None: it has ended.

        Returns:
            Whether it was still this try; else nothing was changed.
        """
        ...

    async def give_up(self, signer: Signer, url: str, at: Micros, message: str) -> int:
        """End what else is pending for a receiver that wants no more; how many there were."""
        ...

    async def get(self, number: int, visible: Visible) -> Delivery:
        """Raises NoSuchDelivery."""
        ...

    async def tries(self, number: int, most: int) -> list[Try]:
        """The latest tries, the first one first."""
        ...

    async def page(
        self, where: DeliveryFilter, visible: Visible, before_id: int | None, limit: int
    ) -> tuple[list[Delivery], int | None]:
        """Newest first; and the next page's ``before_id``."""
        ...

    async def replay(self, number: int, at: Micros) -> Delivery:
        """Let it be due at ``at``, with all its tries before it.

        Raises:
            NoSuchDelivery
        """
        ...

    async def forget(self, ended_before: Micros, limit: int) -> int:
        """Delete those that ended before then; how many."""
        ...


class WebhookClient(Protocol):
    """Posts webhooks."""

    async def post(self, delivery: Delivery, signature: str, webhook_id: str, at_s: int) -> Try:
        """Try once; whatever goes wrong is in the answer."""
        ...

    async def refusal(self, target: WebhookTarget) -> str | None:
        """Why nothing may be sent to a machine, as far as is known soon; None: it may."""
        ...
