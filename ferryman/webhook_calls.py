"""What happens to all jobs, as it happens; and the webhooks that announce it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ferryman.calls import Calls
from ferryman.event_models import EventDoc, EventPage
from ferryman.polling import follow_all_events
from ferryman.webhook_models import DeliveryDoc, DeliveryPage, DeliveryState, WebhookSecret


class WebhookCalls(Calls):
    """Part of :class:`ferryman.Client`."""

    def all_events(
        self, after: int | None = None, *, user: str | None = None, service: str | None = None
    ) -> AsyncGenerator[EventDoc, None]:
        """What happens to all jobs that the caller may see, as it happens; it does not end.

        Args:
            after: from behind this ``seq``; 0: from the start; None: from now on.
            user: only this user's jobs.
            service: only this service's jobs.
        """
        return follow_all_events(self._transport, after, user, service)

    async def past_events(self, job_id: int, after: int = 0) -> AsyncGenerator[EventDoc, None]:
        """What has happened to a job so far; :meth:`events` goes on until it has ended.

        Args:
            after: from behind this ``seq``.

        Raises:
            NotFound, and as :meth:`submit`
        """
        path, query = f"api/v1/jobs/{job_id}/events", {"after": str(after)}
        while True:
            page = await self._transport.get(path, EventPage, query=query)
            for event in page.items:
                yield event
            if page.next is None:
                return
            query["after"] = page.next

    async def deliveries(
        self, job_id: int | None = None, *, state: DeliveryState | None = None
    ) -> AsyncGenerator[DeliveryDoc, None]:
        """Webhooks that were or are to be delivered, newest first.

        Args:
            job_id: only this job's.
            state: ``"pending"``, ``"delivered"`` or ``"failed"``.

        Raises:
            NotFound, and as :meth:`submit`
        """
        path = "api/v1/deliveries" if job_id is None else f"api/v1/jobs/{job_id}/deliveries"
        query = {} if state is None else {"state": str(state)}
        while True:
            page = await self._transport.get(path, DeliveryPage, query=query)
            for delivery in page.items:
                yield delivery
            if page.next is None:
                return
            query["cursor"] = page.next

    async def delivery(self, delivery_id: int) -> DeliveryDoc:
        """A webhook, with its latest tries.

        Raises:
            NotFound
        """
        return await self._transport.get(f"api/v1/deliveries/{delivery_id}", DeliveryDoc)

    async def replay(self, delivery_id: int) -> DeliveryDoc:
        """Have a webhook sent again, now, under the id that it had.

        Raises:
            NotFound
        """
        path = f"api/v1/deliveries/{delivery_id}/replay"
        return (await self._transport.post(path, DeliveryDoc))[1]

    async def webhook_secret(
        self, *, principal: str | None = None, service: str | None = None
    ) -> WebhookSecret:
        """What signs the webhooks of the caller's jobs; see :func:`ferryman.verify_webhook`.

        Args:
            principal: for operators: of what this principal uploads.
            service: for operators: of this service.

        Raises:
            NotFound, NotAllowed
        """
        wanted = {"principal": principal, "service": service}
        query = {name: one for name, one in wanted.items() if one is not None}
        return await self._transport.get("api/v1/webhook-secret", WebhookSecret, query=query)
