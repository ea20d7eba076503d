"""Webhooks: what moves have announced is delivered, and tried again over a day."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Final

import structlog

from server.domain import webhooks as rules
from server.domain.errors import BadField
from server.domain.webhooks import Delivery, Try
from server.stages.stage import AgentTasks, Core, Stage
from server.store import webhooks
from server.store.identity import Identity
from server.webhooks.client import HttpWebhookClient
from shared.clock import SECOND, Clock, Micros

log: structlog.stdlib.BoundLogger = structlog.get_logger()
_AT_ONCE: Final = 32
_PER_TARGET: Final = 4
_PER_PRINCIPAL: Final = 8
_SENDING_S: Final = 60.0
"""Longer than a try takes: what was begun by then is tried again, its server has died."""
NOT_SENT: Final = "a rehearsal sends no webhooks"


class Webhooks(Stage):
    """Delivers webhooks, each at least once: a receiver knows a repeat by its ``webhook-id``.

    Args:
        identity: its name makes ids of webhooks differ between servers. Nothing is sent in a
            rehearsal: the receivers hear of the same jobs from another server.
        machine: whose wall clock receivers compare with theirs; the other one follows it slowly.
    """

    def __init__(
        self, core: Core, client: HttpWebhookClient, identity: Identity, machine: Clock
    ) -> None:
        super().__init__(core)
        self._client, self._identity, self._machine = client, identity, machine
        self._walked: webhooks.Walked = ("", "")
        self._tries = self.core.measures.webhook_tries
        self._tasks = AgentTasks[tuple[str, str, int]]("webhook.not_recorded")
        """By target, principal and number of the delivery."""
        self.stop = self._tasks.stop
        """What is cut off is tried again after the next start."""
        self._next_at: Micros | None = None

    async def run_once(self) -> int:
        """Begin what is due, as far as there is room; how many."""
        begun = await self._begin_due()
        self._next_at = await self.core.database.read(webhooks.next_at)
        return begun

    def until_next_s(self) -> float:
        """Seconds until one is due; what has no room now is begun when another one has ended."""
        if self._next_at is None:
            return math.inf
        left_s = (self._next_at - self.core.clock.now()) / SECOND
        return left_s if left_s > 0 or not [*self._tasks] else math.inf

    async def _begin_due(self) -> int:
        begun = 0
        while room := _AT_ONCE - len(sending := [*self._tasks]):
            targets = Counter(target for target, _, _ in sending)
            principals = Counter(principal for _, principal, _ in sending)
            due, self._walked = await self.core.database.read(
                webhooks.due,
                self.core.clock.now(),
                room,
                self._walked,
                targets=[target for target, count in targets.items() if count >= _PER_TARGET],
                principals=[name for name, count in principals.items() if count >= _PER_PRINCIPAL],
            )
            chosen = []
            for one in due:
                target = str(one.target)
                if targets[target] < _PER_TARGET and principals[one.principal] < _PER_PRINCIPAL:
                    targets[target] += 1
                    principals[one.principal] += 1
                    chosen.append(one)
            if not chosen:
                break
            until = self.core.clock.now() + round(_SENDING_S * SECOND)
            for one in await self.core.database.write(webhooks.begin, chosen, until):
                key = (str(one.target), one.principal, one.id)
                self._tasks.start("", key, partial(self._deliver, one))
                begun += 1
        return begun

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._try(delivery)
        finally:
            self.core.wakeups.webhooks.set()

    async def _try(self, delivery: Delivery) -> None:
        if self._identity.rehearsal:
            refused = Try(delivery.tries, self.core.clock.now(), 0.0, None, NOT_SENT)
            await self.core.database.write(webhooks.end, delivery, refused, None)
            return
        webhook_id, at_s = self.webhook_id(delivery), self._machine.now() // SECOND
        keys = await self._keys(delivery.principal)
        signed = rules.signature(keys, webhook_id, at_s, delivery.body.encode())
        done = await self._client.post(delivery, signed, webhook_id, at_s)
        shown = {
            "delivery": delivery.id,
            "job_id": delivery.job_id,
            "event_type": delivery.event,
            "target": str(delivery.target),
            "tries": delivery.tries,
        }
        if done.problem is None:
            await self.core.database.write(webhooks.end, delivery, done, None)
            self._tries.labels("delivered").inc()
            log.info("webhook.delivered", **shown, status=done.status)
            return
        wait_s = rules.next_try_s(done, self.core.uniform)
        next_at = None if wait_s is None else self.core.clock.now() + round(wait_s * SECOND)
        await self.core.database.write(webhooks.end, delivery, done, next_at)
        self._tries.labels("failed" if wait_s is None else "postponed").inc()
        if wait_s is None:
            log.warning("webhook.failed", **shown, why=done.problem)
        else:
            log.info("webhook.postponed", **shown, why=done.problem, seconds=round(wait_s))

    async def _keys(self, principal: str) -> list[bytes]:
        """The secrets that sign for what a principal uploads, the one in use first."""
        number, at = await self.core.database.read(webhooks.replaced, principal)
        keys = [rules.secret_of(self._identity.webhook_key, principal, number)]
        if number and self.core.clock.now() - at < rules.REPLACED_S * SECOND:
            keys.append(rules.secret_of(self._identity.webhook_key, principal, number - 1))
        return keys

    # -- callers

    def webhook_id(self, delivery: Delivery) -> str:
        """What names the webhook to its receiver, whichever try it is."""
        return f"msg_{self._identity.server[:16]}_{delivery.id}"

    async def check(self, url: str) -> None:
        """Refuse the address of an upload that leads to a machine that no webhook may reach. Raises
        BadField.
        """
        why = await self._client.refusal(rules.webhook_target(url))
        if why is not None:
            raise BadField("callback_url", "callback_refused", f"Invalid callback_url: {why}")

    async def secrets(self, principal: str, *, replace: bool = False) -> list[str]:
        """The secrets of a principal, as ``whsec_…``, the one in use first. ``replace``: there is
        to be another one.
        """
        if replace:
            await self.core.database.write(webhooks.replace, principal, self.core.clock.now())
        return [rules.secret_text(key) for key in await self._keys(principal)]

    async def of_job(self, job_id: int) -> list[Delivery]:
        """The newest of a job, the first one first, with their latest tries."""
        return await self.core.database.read(webhooks.of_job, job_id)
