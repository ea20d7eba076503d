"""What is sent to a Ferryman agent: orders with their bundles, and acknowledgements, all by
``POST /payloads``.

An order that comes alone is sent at once. What comes while requests are under way goes together,
as far as it is small. Acknowledgements go with the next request, or by themselves after a short
time without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from server.agents.agent import Body, Inputs
from server.domain.agents import RefusedByAgent
from server.domain.ending import heartbeat_timeout_s
from server.domain.jobs import Bundle, Job
from server.domain.service import Service
from shared.clock import Clock
from shared.together import Together
from shared.wire import (
    ArrayTask,
    InputsInfo,
    Order,
    OrderAnswer,
    PackTask,
    PayloadRef,
    PayloadsAnswer,
    PayloadsRequest,
)

MAX_BYTES: Final = 1_000_000
"""Of one request with several: proxies take a mebibyte, unless configured otherwise."""
MAX_PAYLOADS: Final = 200
"""Orders and acknowledgements of one request."""
MAX_WAIT_S: Final = 0.2
"""Of acknowledgements, for a request that they go along with."""
SEND_AT_ONCE_FROM: Final = 100
"""So many acknowledgements that wait go at once."""
MISSING: Final = "bundle_missing"
_ORDER_BYTES: Final = 2_000
_REF_BYTES: Final = 100
_AT_ONCE: Final = 2
_MAX_REMEMBERED: Final = 1_000
Post: TypeAlias = Callable[[Body, int], Awaitable[PayloadsAnswer]]
"""Makes a request with so many orders; the answer has one for each. Raises AgentError."""
T = TypeVar("T")


class SmallOrder(NamedTuple):
    """An order, and what is sent with it.

    Attributes:
        size: bytes of its bundle; 0: the agent has it.
        content: the bundle, and the inputs behind it.
    """

    order: Order
    size: int = 0
    content: bytes = b""

    @property
    def request_size(self) -> int:
        """About as many bytes as it takes in a request."""
        env = sum(6 * (len(name) + len(value)) for name, value in self.order.env.items())
        line = self.order.array.line if self.order.array else None
        text = 4 * len(self.order.meta) + 6 * len(line or "")
        return _ORDER_BYTES + env + text + len(self.content)


class OrderSender:
    """Sends to one agent.

    Args:
        server: identity of our database.
    """

    def __init__(self, post: Post, server: str, clock: Clock) -> None:
        self._post, self._server, self._clock = post, server, clock
        self._together: Together[SmallOrder | PayloadRef, OrderAnswer | None] = Together(
            self._send,
            at_once=_AT_ONCE,
            most=MAX_PAYLOADS,
            size=lambda one: one.request_size if isinstance(one, SmallOrder) else _REF_BYTES,
            most_size=MAX_BYTES,
        )

    async def order(self, one: SmallOrder) -> OrderAnswer:
        """The answer to an order that is sent with others, if there are any. Raises AgentError."""
        answer = await self._together(one)
        assert answer is not None, "each order has one"
        return answer

    async def acknowledge(self, ref: PayloadRef) -> None:
        """Return when the agent has it. Raises AgentError."""
        await self._together.along(ref, MAX_WAIT_S, SEND_AT_ONCE_FROM, self._clock)

    async def stream(
        self, order: Order, size: int, source: AsyncIterator[bytes], length: int
    ) -> OrderAnswer:
        """The answer to an order whose bundle is large.

        Args:
            size: bytes of the bundle.
            source: the bundle, and the inputs behind it; ``length`` bytes.
        """
        (answer,) = (await self._request([order], [size], [], source, length)).answers
        return answer

    async def _send(
        self, items: Sequence[SmallOrder | PayloadRef]
    ) -> list[OrderAnswer | RefusedByAgent | None]:
        orders = [one for one in items if isinstance(one, SmallOrder)]
        refs = [one for one in items if isinstance(one, PayloadRef)]
        content = b"".join(one.content for one in orders)

        async def source() -> AsyncIterator[bytes]:
            yield content

        try:
            answer = await self._request(
                [one.order for one in orders],
                [one.size for one in orders],
                refs,
                source(),
                len(content),
            )
        except RefusedByAgent as failed:
            if len(orders) > 1:
                failed.final = False  # it is the request that it does not take
            raise
        answers = iter(answer.answers)
        return [
            next(answers) if isinstance(one, SmallOrder) else _kept(one, answer.refused.get(one.id))
            for one in items
        ]

    async def _request(
        self,
        orders: list[Order],
        sizes: list[int],
        refs: list[PayloadRef],
        source: AsyncIterator[bytes],
        length: int,
    ) -> PayloadsAnswer:
        head = PayloadsRequest(orders=orders, sizes=sizes, server=self._server, acknowledge=refs)
        line = head.model_dump_json().encode() + b"\n"

        async def whole() -> AsyncIterator[bytes]:
            yield line
            async for chunk in source:
                yield chunk

        bundles = sum(size > 0 for size in sizes)
        body = Body("application/octet-stream", len(line) + length, whole(), bundles)
        return await self._post(body, len(orders))


def _kept(ref: PayloadRef, code: str | None) -> RefusedByAgent | None:
    """What an agent's word on an acknowledgement means; None: it needs no more."""
    if code in (None, "", "payload_not_found"):
        return None
    return RefusedByAgent(str(code)[:64], f"payload {ref.id} is kept: {code}", final=False)


class SentBundles:
    """Bundles that an agent may still have: one goes with the first attempt of it, and the others
    are ordered without."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[str, object]] = {}
        """Digest -> our file, and what is another whenever it is sent. Two files of one digest can
        differ in what is executable: the latest counts."""
        self._sending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Digest -> held by the request that carries this bundle."""

    async def send(
        self, bundle: Bundle, first: Callable[[], Awaitable[T]], later: Callable[[], Awaitable[T]]
    ) -> T:
        """Make one of two calls.

        Args:
            first: sends the bundle.
            later: orders it; raises RefusedByAgent with ``bundle_missing`` if it is not there.
        """
        sending = self._sending.setdefault(bundle.digest, asyncio.Lock())
        while True:
            async with sending:
                sent = self._sent.get(bundle.digest)
                if sent is None or sent[0] != bundle.file:
                    found = await first()
                    self._sent.pop(bundle.digest, None)
                    self._sent[bundle.digest] = bundle.file, object()
                    if len(self._sent) > _MAX_REMEMBERED:
                        del self._sent[next(iter(self._sent))]
                    return found
            try:
                return await later()
            except RefusedByAgent as no:
                if no.code != MISSING:
                    raise
            if self._sent.get(bundle.digest) is sent:  # not sent again meanwhile
                del self._sent[bundle.digest]


def order_of(
    job: Job,
    service: Service,
    server: str,
    *,
    inputs: Inputs | None = None,
    keep_bundle: bool = False,
) -> Order:
    """The order for the job's current attempt. With ``keep_bundle`` more orders of its bundle may
    come.
    """
    assert job.bundle is not None, "only Cleaned jobs have none"
    array = pack = None
    if job.array_index is not None:
        array = ArrayTask(index=job.array_index, line=job.array_line)
        if service.pack > 1 and job.parent_id is not None:
            pack = PackTask(batch=job.parent_id, most=service.pack)
    return Order(
        server=server,
        key=str(job.key),
        service=job.service,
        user_id=job.user_id,
        timeout_s=job.timeout_s,
        limits=job.limits,
        bundle_digest=job.bundle.digest,
        bundle_size=job.bundle.size,
        heartbeat_timeout_s=heartbeat_timeout_s(job, service),
        on_shutdown=service.on_shutdown,
        env=dict(service.env),
        folder=job.bundle_folder,
        entry=job.entry,
        array=array,
        inputs=None if inputs is None else InputsInfo(size=inputs.size, sha256=inputs.sha256),
        outputs=list(job.outputs),
        result_files=job.result_files,
        pack=pack,
        meta=job.meta or "",
        keep_bundle=keep_bundle,
        try_number=job.earlier_starts + 1,
    )
