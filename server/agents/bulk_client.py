"""Many attempts of one agent at once: orders, results, acknowledgements.

A call that comes alone is made at once, what comes meanwhile goes together. The routes for one are
for large bundles, for inputs, and for agents of a version without the routes for many.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from server.agents import answers, combined_submits, forms, results
from server.agents.acknowledgements import Acknowledgements, of_code
from server.agents.agent_client import AgentClient
from server.agents.answers import NO_ROUTE, Document
from server.agents.combined_submits import OrderWithBundle, SubmitSeparately
from server.agents.deliveries import Deliveries
from server.agents.forms import Form
from server.agents.orders import MAX_BYTES, order_of
from server.domain.jobs import FileKind, Job
from server.domain.service import Service
from server.ports import (
    AgentError,
    Fetched,
    Inputs,
    NoSuchPayload,
    RefusedByAgent,
    ScratchFile,
    Unreachable,
)
from shared.ids import Start
from shared.together import Together
from shared.wire import (
    START,
    Acknowledged,
    Order,
    OrderAnswer,
    OrderAnswers,
    OrderList,
    PayloadDoc,
    PayloadRef,
    PayloadRefs,
    Wire,
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
        self._old_since: int | None = None
        """The contact in which it had no routes for many."""
        self._not_combined_since: int | None = None
        """The contact in which it took no bundles together."""

    @property
    def hands_over_many(self) -> bool:
        return self._old_since != self.contacts

    @property
    def _takes_combined(self) -> bool:
        return self._not_combined_since != self.contacts

    # -- sending

    async def submit(self, job: Job, service: Service, inputs: Inputs | None = None) -> PayloadDoc:
        if job.parent_id is None or inputs is not None or not self.hands_over_many:
            return await self._submit(job, service, False, inputs)
        return await self._deliveries.send(job, service)

    async def _submit(
        self, job: Job, service: Service, keep_bundle: bool, inputs: Inputs | None = None
    ) -> PayloadDoc:
        assert job.bundle is not None, "only Cleaned jobs have none"
        order = order_of(job, service, self._server, inputs=inputs, keep_bundle=keep_bundle)
        if (
            inputs is None
            and job.bundle.size <= combined_submits.MAX_BUNDLE
            and self._takes_combined
        ):
            with suppress(SubmitSeparately):
                return await self._submit_together(job, order)
        async with self._sessions.storage.open(FileKind.BUNDLE, job.bundle.file) as bundle:
            form = forms.zipped(order.model_dump_json(), bundle, secrets.token_hex(16), inputs)
            body = await self._post_bundle(f"{self.base}/submit", form)
        try:
            return self._of(PayloadDoc.model_validate_json(body), job)
        except ValueError as problem:
            raise Unreachable(self._say(problem), sent=True) from problem

    async def _submit_together(self, job: Job, order: Order) -> PayloadDoc:
        """With others, if there are any. Raises SubmitSeparately, AgentError or OSError."""
        assert job.bundle is not None, "only Cleaned jobs have none"
        async with self._sessions.storage.open(FileKind.BUNDLE, job.bundle.file) as bundle:
            content = b"".join([chunk async for chunk in bundle])
        if len(content) != job.bundle.size:  # empty would mean that the agent has it
            raise SubmitSeparately(f"bundle {job.bundle.file} is damaged")
        ordered = self._ordered(await self._combined(OrderWithBundle(order, content)), job)
        if isinstance(ordered, Exception):
            raise ordered
        return ordered

    async def _send(self, some: Sequence[OrderWithBundle]) -> list[OrderAnswer]:
        """Raises SubmitSeparately or AgentError."""
        contact = self.contacts
        try:
            return await combined_submits.send(
                some, self._post_combined, self._acknowledgements, self._server
            )
        except RefusedByAgent as no:
            if no.code != NO_ROUTE:
                raise
            self._not_combined_since = contact
            raise SubmitSeparately(f"agent {self.name} takes one payload at a time") from no
        except ValueError as problem:
            raise Unreachable(self._say(problem), sent=True) from problem

    async def _post_combined(self, form: Form) -> bytes:
        accepted = answers.OK | answers.NOT_THERE
        return await self._post_bundle(f"{self.base}/payloads", form, accepted)

    async def _order_many(
        self, orders: Sequence[tuple[Job, Service]]
    ) -> list[PayloadDoc | Exception]:
        made = [order_of(*one, self._server, keep_bundle=True) for one in orders]
        given: Sequence[OrderAnswer] | None = None
        if self._takes_combined:
            with suppress(SubmitSeparately):
                given = await self._send([OrderWithBundle(one) for one in made])
        if given is None:
            listed = OrderList(orders=made)
            given = (await self._post_many("/orders", listed, OrderAnswers)).answers
        if len(given) != len(orders):
            raise Unreachable(self._say("it has not answered each order"), sent=True)
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

    # -- results

    async def fetch_many(
        self, payloads: Sequence[PayloadDoc], to: ScratchFile
    ) -> list[tuple[int, Fetched] | None]:
        refs = PayloadRefs(payloads=[PayloadRef(id=one.id, key=one.key) for one in payloads])
        with self._counted("result") as moved:
            async with self._many("/results", refs) as answer:
                found = await results.store(answer, payloads, to, self._clock)
            moved(sum(one[1].size for one in found if one is not None))
        return found

    # -- acknowledging

    async def acknowledge(self, payload_id: int, key: str | None = None) -> None:
        if key is None or not self.hands_over_many:
            await self._acknowledge(payload_id, key)
        else:
            await self._acknowledgements(PayloadRef(id=payload_id, key=key))

    async def _acknowledge(self, payload_id: int, key: str | None) -> None:
        url = f"{self.base}/payloads/{payload_id}"
        try:
            async with self._call("DELETE", url, params=self._caller(key)):
                pass
        except NoSuchPayload:
            pass

    async def _acknowledge_many(self, refs: Sequence[PayloadRef]) -> list[Exception | None]:
        if len(refs) > 1 and self.hands_over_many:
            path = f"/payloads/acknowledge?{urlencode(self._caller(None))}"
            listed = PayloadRefs(payloads=list(refs))
            try:
                refused = (await self._post_many(path, listed, Acknowledged)).refused
            except RefusedByAgent:
                if self.hands_over_many:
                    raise
            else:
                return [of_code(ref, refused.get(ref.id)) for ref in refs]
        calls = (self._acknowledge(ref.id, ref.key) for ref in refs)
        done = await asyncio.gather(*calls, return_exceptions=True)
        return [one if isinstance(one, Exception) else None for one in done]

    # -- requests

    async def _post_many(self, path: str, what: Wire, model: type[Document]) -> Document:
        async with self._many(path, what) as answer:
            return model.model_validate_json(await answers.read(answer))

    @asynccontextmanager
    async def _many(self, path: str, what: Wire) -> AsyncIterator[aiohttp.ClientResponse]:
        """Raises AgentError, with NO_ROUTE if the agent is of a version without these routes: then
        it gets one at a time until it was away."""
        data, headers = what.model_dump_json().encode(), {"Content-Type": "application/json"}
        contact = self.contacts
        async with self._call(
            "POST",
            self.base + path,
            data=data,
            headers=headers,
            transfer=True,
            accepted=answers.OK | answers.NOT_THERE,
        ) as answer:
            if answer.status in answers.NOT_THERE:
                self._old_since = contact
                message = f"agent {self.name} takes one payload at a time"
                raise RefusedByAgent(NO_ROUTE, message, final=False)
            yield answer

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
