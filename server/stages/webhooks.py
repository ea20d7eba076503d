"""Webhooks: what moves have announced is delivered, and tried again over a day."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from server.domain import access
from server.domain.errors import BadField
from server.domain.retry import Uniform
from server.domain.service import Service
from server.domain.webhook_targets import WebhookTarget, webhook_target
from server.domain.webhooks import (
    Delivery,
    Signer,
    SignerKind,
    Try,
    WebhookSecrets,
    next_try_s,
    secret_text,
    signature,
)
from server.ports import Measures
from server.store.webhooks import DeliveryFilter, SqlDeliveries
from shared.clock import RANDOM, SECOND, Clock, Micros
from shared.principals import Principal

log: structlog.stdlib.BoundLogger = structlog.get_logger()
_AT_ONCE: Final = 32
_PER_TARGET: Final = 4
_PER_SIGNER: Final = 8
_SENDING_S: Final = 60.0
"""Longer than a try takes: what was begun by then is tried again, its server has died."""
_FORGET_EVERY_S: Final = 3_600.0
_FORGOTTEN_AT_ONCE: Final = 1_000
_TRIES_SHOWN: Final = 100
NOT_SENT: Final = "a rehearsal sends no webhooks"


class WebhookClient(Protocol):
    """Posts webhooks."""

    async def post(self, delivery: Delivery, signature: str, webhook_id: str, at_s: int) -> Try:
        """Try once; whatever goes wrong is in the answer."""

    async def refusal(self, target: WebhookTarget) -> str | None:
        """Why nothing may be sent to a machine, as far as is known soon; None: it may."""


class Webhooks:
    """Delivers webhooks, each at least once: a receiver knows a repeat by its ``webhook-id``.

    Args:
        machine: whose wall clock receivers compare with theirs; the other one follows it slowly.
        server: the identity of the database, which makes ids of webhooks differ between servers.
        expires_after_s: how long deliveries that have ended are kept.
        on_change: called when there may be something to do.
        measures: what is counted, for ``/metrics``.
        rehearsal: nothing is sent: the receivers hear of the same jobs from another server.
    """

    def __init__(
        self,
        deliveries: SqlDeliveries,
        client: WebhookClient,
        services: Mapping[str, Service],
        secrets: WebhookSecrets,
        clock: Clock,
        machine: Clock,
        *,
        server: str,
        expires_after_s: float,
        on_change: Callable[[], None],
        measures: Measures | None = None,
        uniform: Uniform = RANDOM.uniform,
        rehearsal: bool = False,
    ) -> None:
        self._deliveries, self._client, self._services = deliveries, client, services
        self._secrets, self._server = secrets, server
        self._clock, self._machine = clock, machine
        self._expires_after_s = expires_after_s
        self._on_change, self._uniform = on_change, uniform
        self._rehearsal = rehearsal
        self._tries = (measures or Measures()).webhook_tries
        self._sending: dict[asyncio.Task[None], Delivery] = {}
        self._next_at: Micros | None = None
        self._forget_at = -math.inf

    async def oldest(self) -> Micros | None:
        """When the oldest was announced that is to be sent, now or again later; None: none is."""
        return await self._deliveries.oldest()

    async def run_once(self) -> int:
        """Begin what is due, as far as there is room; how many."""
        begun = await self._begin_due()
        self._next_at = await self._deliveries.next_at()
        if self._clock.monotonic() >= self._forget_at:
            before = self._clock.now() - round(self._expires_after_s * SECOND)
            full = await self._deliveries.forget(before, _FORGOTTEN_AT_ONCE) == _FORGOTTEN_AT_ONCE
            self._forget_at = self._clock.monotonic() + (0 if full else _FORGET_EVERY_S)
        return begun

    def until_next_s(self) -> float:
        """Seconds until one is due; what has no room now is begun when another one has ended."""
        if self._next_at is None:
            return math.inf
        left_s = (self._next_at - self._clock.now()) / SECOND
        return left_s if left_s > 0 or not self._sending else math.inf

    async def stop(self) -> None:
        """Cut off what is being sent; it is tried again after the next start."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _begin_due(self) -> int:
        begun = 0
        while room := _AT_ONCE - len(self._sending):
            targets = Counter(str(one.target) for one in self._sending.values())
            signers = Counter(one.signer for one in self._sending.values())
            due = await self._deliveries.due(
                self._clock.now(),
                room,
                targets=[target for target, count in targets.items() if count >= _PER_TARGET],
                signers=[signer for signer, count in signers.items() if count >= _PER_SIGNER],
            )
            chosen = []
            for one in due:
                target = str(one.target)
                if targets[target] < _PER_TARGET and signers[one.signer] < _PER_SIGNER:
                    targets[target] += 1
                    signers[one.signer] += 1
                    chosen.append(one)
            if not chosen:
                break
            until = self._clock.now() + round(_SENDING_S * SECOND)
            for one in await self._deliveries.begin(chosen, until):
                task = asyncio.create_task(self._deliver(one))
                self._sending[task] = one
                task.add_done_callback(self._done)
                begun += 1
        return begun

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("webhook.not_recorded", error=repr(problem))
        self._on_change()

    async def _deliver(self, delivery: Delivery) -> None:
        if self._rehearsal:
            refused = Try(delivery.tries, self._clock.now(), 0.0, None, NOT_SENT)
            await self._deliveries.end(delivery, refused, None)
            return
        webhook_id, at_s = self.webhook_id(delivery), self._machine.now() // SECOND
        keys = self._keys(delivery.signer)
        signed = signature(keys, webhook_id, at_s, delivery.body.encode())
        done = await self._client.post(delivery, signed, webhook_id, at_s)
        shown = {
            "delivery": delivery.id,
            "job_id": delivery.job_id,
            "event_type": delivery.event,
            "target": str(delivery.target),
            "tries": delivery.tries,
        }
        if done.problem is None:
            await self._deliveries.end(delivery, done, None)
            self._tries.labels("delivered").inc()
            log.info("webhook.delivered", **shown, status=done.status)
            return
        wait_s = next_try_s(delivery, done, self._uniform)
        next_at = None if wait_s is None else self._clock.now() + round(wait_s * SECOND)
        await self._deliveries.end(delivery, done, next_at)
        self._tries.labels("failed" if wait_s is None else "postponed").inc()
        if wait_s is None:
            log.warning("webhook.failed", **shown, why=done.problem)
            if done.status == HTTPStatus.GONE:
                now = self._clock.now()
                await self._deliveries.give_up(delivery.signer, delivery.url, now, done.problem)
        else:
            log.info("webhook.postponed", **shown, why=done.problem, seconds=round(wait_s))

    def _keys(self, signer: Signer) -> list[bytes]:
        own = None
        if signer.kind is SignerKind.SERVICE:
            service = self._services.get(signer.name)
            own = service.webhook.secret if service and service.webhook else None
        return self._secrets.of(signer, own)

    # -- callers

    def webhook_id(self, delivery: Delivery) -> str:
        """What names the webhook to its receiver, whichever try it is."""
        return f"msg_{self._server[:16]}_{delivery.id}"

    async def check(self, url: str) -> None:
        """Refuse the address of an upload that leads to a machine that no webhook may reach. Raises
        BadField.
        """
        why = await self._client.refusal(webhook_target(url))
        if why is not None:
            raise BadField("callback_url", "callback_refused", f"Invalid callback_url: {why}")

    def secrets(self, signer: Signer) -> list[str]:
        """The secrets of a receiver, as ``whsec_…``."""
        return [secret_text(key) for key in self._keys(signer)]

    async def page(
        self, principal: Principal, where: DeliveryFilter, before_id: int | None, limit: int
    ) -> tuple[list[Delivery], int | None]:
        """Newest first; and the next page's ``before_id``. Raises NotAllowed."""
        return await self._deliveries.page(where, access.visible(principal), before_id, limit)

    async def read(self, principal: Principal, number: int) -> tuple[Delivery, list[Try]]:
        """A delivery, and its latest tries. Raises NotAllowed, NoSuchDelivery."""
        found = await self._deliveries.get(number, access.visible(principal))
        return found, await self._deliveries.tries(number, _TRIES_SHOWN)

    async def replay(self, principal: Principal, number: int) -> Delivery:
        """Send it again, now, with all its tries before it. Raises NotAllowed, NoSuchDelivery."""
        await self._deliveries.get(number, access.visible(principal))
        found = await self._deliveries.replay(number, self._clock.now())
        self._on_change()
        return found
