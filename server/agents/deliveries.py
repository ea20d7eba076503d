"""Attempts that share a bundle: it is sent to an agent with the first of them, and the others are
ordered together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from server.agents.orders import MAX_BYTES, size_in_request
from server.domain.jobs import Job
from server.domain.service import Service
from server.ports import RefusedByAgent
from shared.together import Together
from shared.wire import PayloadDoc

Order = tuple[Job, Service]
Submit = Callable[[Job, Service, bool], Awaitable[PayloadDoc]]
OrderMany = Callable[[Sequence[Order]], Awaitable[Sequence[PayloadDoc | Exception]]]
MISSING: Final = "bundle_missing"
_MAX_REMEMBERED: Final = 1_000
_MAX_ORDERS: Final = 200


class Deliveries:
    """Those to one agent.

    Args:
        submit: sends an attempt with its bundle; the last argument: the agent shall keep it.
        order_many: orders attempts whose bundles the agent has.
    """

    def __init__(self, submit: Submit, order_many: OrderMany) -> None:
        self._submit = submit
        self._sent: dict[str, tuple[str, int]] = {}
        """Digest of a bundle that the agent may still have -> our file, and the job that it was
        sent with. Two files of one digest can differ in what is executable: the latest counts."""
        self._under_way: dict[str, asyncio.Event] = {}
        """Digest -> set when the submit that carries this bundle is answered."""
        self._orders = Together(
            order_many,
            at_once=2,
            most=_MAX_ORDERS,
            size=lambda order: size_in_request(order[1].env, order[0].meta),
            most_size=MAX_BYTES,
        )

    async def send(self, job: Job, service: Service) -> PayloadDoc:
        """Give an attempt to the agent, with its bundle only if the agent does not have it. Raises
        what a submit raises."""
        assert job.bundle is not None, "only Cleaned jobs have none"
        digest = job.bundle.digest
        while True:
            sent_with = self._sent.get(digest)
            if sent_with is not None and sent_with[0] == job.bundle.file:
                try:
                    return await self._orders((job, service))
                except RefusedByAgent as no:
                    if no.code != MISSING:
                        raise
                    if self._sent.get(digest) == sent_with:
                        del self._sent[digest]  # unless it was sent again meanwhile
            elif (under_way := self._under_way.get(digest)) is not None:
                await under_way.wait()
            else:
                return await self._send_first(job, service, digest)

    async def _send_first(self, job: Job, service: Service, digest: str) -> PayloadDoc:
        self._under_way[digest] = asyncio.Event()
        try:
            payload = await self._submit(job, service, True)
            self._sent.pop(digest, None)
            self._sent[digest] = (job.bundle.file if job.bundle else "", job.id)
            if len(self._sent) > _MAX_REMEMBERED:
                del self._sent[next(iter(self._sent))]
            return payload
        finally:
            self._under_way.pop(digest).set()
