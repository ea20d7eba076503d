"""Many attempts of one agent at once: orders, results, acknowledgements.

A call that comes alone is made at once, what comes meanwhile goes together. The routes for one are
for large bundles and for inputs.
"""

from __future__ import annotations

import errno
import secrets
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from server.agents import answers, combined_submits, forms
from server.agents.acknowledgements import Acknowledgements, of_code
from server.agents.agent_client import AgentClient
from server.agents.combined_submits import OrderWithBundle
from server.agents.deliveries import Deliveries
from server.agents.forms import Form
from server.agents.orders import MAX_BYTES, order_of
from server.domain.jobs import FileKind, Job
from server.domain.service import Service
from server.ports import (
    AgentError,
    Inputs,
    Unreachable,
)
from shared.ids import Start
from shared.together import Together
from shared.wire import (
    START,
    Order,
    OrderAnswer,
    PayloadDoc,
    PayloadRef,
    PayloadsAnswer,
    PayloadsRequest,
)

_MAX_PAYLOADS: Final = 200
"""In one request."""
_AT_ONCE: Final = 2
"""Requests with bundles."""


class BulkClient(AgentClient):
    """The part of a Ferryman agent's client that sends and acknowledges.

    Args:
        server: identity of our database, scopes our keys.
        start: of our server.
    """

    def __init__(self, *args: Any, server: str, start: Start, **more: Any) -> None:
        super().__init__(*args, **more)
        self._server = server
        self._headers = {**self._headers, START: str(start)}
        self._deliveries = Deliveries(self._submit, self._order_many)
        self._combined = Together(
            self._send,
            at_once=_AT_ONCE,
            most=_MAX_PAYLOADS,
            size=lambda one: one.size,
            most_size=MAX_BYTES,
        )
        self._acknowledgements = Acknowledgements(self._acknowledge_many, self._clock)

    # -- sending

    async def submit(self, job: Job, service: Service, inputs: Inputs | None = None) -> PayloadDoc:
        if job.parent_id is None or inputs is not None:
            return await self._submit(job, service, False, inputs)
        return await self._deliveries.send(job, service)

    async def _submit(
        self, job: Job, service: Service, keep_bundle: bool, inputs: Inputs | None = None
    ) -> PayloadDoc:
        assert job.bundle is not None, "only Cleaned jobs have none"
        order = order_of(job, service, self._server, inputs=inputs, keep_bundle=keep_bundle)
        if inputs is None and job.bundle.size <= combined_submits.MAX_BUNDLE:
            return await self._submit_together(job, order)
        async with self._sessions.storage.open(FileKind.BUNDLE, job.bundle.file) as bundle:
            form = forms.zipped(order.model_dump_json(), bundle, secrets.token_hex(16), inputs)
            body = await self._post_bundle(f"{self.base}/submit", form)
        try:
            return self._of(PayloadDoc.model_validate_json(body), job)
        except ValueError as problem:
            raise Unreachable(self._say(problem), sent=True) from problem

    async def _submit_together(self, job: Job, order: Order) -> PayloadDoc:
        """With others, if there are any. Raises AgentError or OSError."""
        assert job.bundle is not None, "only Cleaned jobs have none"
        async with self._sessions.storage.open(FileKind.BUNDLE, job.bundle.file) as bundle:
            content = b"".join([chunk async for chunk in bundle])
        if len(content) != job.bundle.size:  # empty would mean that the agent has it
            raise OSError(errno.EIO, "it is not as long as it was")
        ordered = self._ordered(await self._combined(OrderWithBundle(order, content)), job)
        if isinstance(ordered, Exception):
            raise ordered
        return ordered

    async def _send(self, some: Sequence[OrderWithBundle]) -> list[OrderAnswer]:
        """Raises AgentError."""
        try:
            return await combined_submits.send(
                some, self._post_combined, self._acknowledgements, self._server
            )
        except ValueError as problem:
            raise Unreachable(self._say(problem), sent=True) from problem

    async def _post_combined(self, form: Form) -> bytes:
        return await self._post_bundle(f"{self.base}/payloads", form)

    async def _order_many(
        self, orders: Sequence[tuple[Job, Service]]
    ) -> list[PayloadDoc | Exception]:
        made = [order_of(*one, self._server, keep_bundle=True) for one in orders]
        given = await self._send([OrderWithBundle(one) for one in made])
        return [self._ordered(answer, job) for answer, (job, _) in zip(given, orders, strict=True)]

    def _ordered(self, answer: OrderAnswer, job: Job) -> PayloadDoc | Exception:
        if answer.payload is None:
            code, message = answer.code or "refused", answer.message[:500]
            no = answers.refused(answer.status, code, message, answer.retry_after_s)
            return self._judge(no)
        try:
            return self._of(answer.payload, job)
        except ValueError as problem:
            return Unreachable(self._say(problem), sent=True)

    # -- acknowledging

    async def acknowledge(self, payload_id: int, key: str | None = None) -> None:
        await self._acknowledgements(PayloadRef(id=payload_id, key=key))

    async def _acknowledge_many(self, refs: Sequence[PayloadRef]) -> list[Exception | None]:
        head = PayloadsRequest(orders=[], sizes=[], server=self._server, acknowledge=list(refs))
        body = await self._post_combined(forms.together(head.model_dump_json(), []))
        refused = PayloadsAnswer.model_validate_json(body).refused
        return [of_code(ref, refused.get(ref.id)) for ref in refs]

    @abstractmethod
    def _judge(self, problem: AgentError) -> AgentError:
        """What a refusal means; a stale start is noted."""

    @abstractmethod
    def _caller(self, key: str | None) -> dict[str, str]:
        """Who asks for a change, as query."""

    def _of(self, payload: PayloadDoc, job: Job) -> PayloadDoc:
        """Raises ValueError: it is another attempt's."""
        if payload.server != self._server or payload.key != str(job.key):
            raise ValueError(f"payload {payload.key} in place of {job.key}")
        return payload
