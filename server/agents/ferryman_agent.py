"""A Ferryman agent: keys, events, acknowledgements, and what an attempt writes while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import structlog
from aiohttp.http_exceptions import LineTooLong
from yarl import URL

from server.agents import answers
from server.agents.agent import SHORT_CALL, SMALL, Agent, Body, Inputs
from server.agents.answers import MAX_RESULT
from server.agents.sender import OrderSender, SentBundles, SmallOrder, order_of
from server.domain import outcome
from server.domain.agents import AgentError, NoSuchPayload, RefusedByAgent, Unreachable
from server.domain.jobs import FileKind, Job
from server.domain.service import Service
from server.storage.scratch import ScratchFile
from shared.clock import Clock
from shared.http.numbers import whole_number
from shared.ids import AttemptKey, Start
from shared.wire import (
    FILE_SIZE,
    LOG_SIZE,
    START,
    AgentEvent,
    AgentHealth,
    Order,
    OrderAnswer,
    PayloadDoc,
    PayloadList,
    PayloadRef,
    PayloadsAnswer,
    ResultInfo,
    RunningFiles,
    Settled,
)

log = structlog.get_logger()
_STREAM: Final = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=45)
"""A log that is followed ends after 15 s in which nothing was written."""
_PING_BYTES: Final = 1 << 10
_MOST_PAYLOADS: Final = 100_000
"""Of a list, and pages of it: what reads it keeps the name of each."""
_NO_BYTES: Final = 2**62
"""An offset behind every log."""
_GONE: Final = frozenset({"log_gone", "files_gone"})
QUICK_MS: Final = 100
"""An attempt that ends within so long of its start is reported once, as ended."""
SILENT_S: Final = 10.0
"""An agent that sends a heartbeat each second counts as gone when it has sent nothing for so
long."""
_LINES: Final = 100
"""Then others have a turn: lines that are there already are read without one."""
_LINE_BYTES: Final = 1 << 20
"""A payload's live values have limits, and so has its line."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One event."""

    event: AgentEvent
    result: bytes | None
    """Of its payload, as it came: it is still to be checked. None: it has to be fetched."""
    size: int
    """Bytes of its line."""


class FerrymanAgent(Agent):
    """A Ferryman agent.

    Args:
        server: identity of our database, scopes our keys.
        start: of our server.
        former: of the servers that ours was restored in place of.
    """

    supports_events = True

    def __init__(
        self, *args: Any, server: str, start: Start, former: Sequence[str] = (), **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._server, self._former = server, former
        self._headers = {**self._headers, START: str(start)}
        self._sender = OrderSender(self._post_payloads, server, self._clock)
        self._sent_bundles = SentBundles()

    async def ask_health(self) -> AgentHealth:
        if self._identity is not None and not self.reachable:
            # Whoever has taken its address gets no token.
            url = f"{self.base}/"
            async with self._call("GET", url, timeout=SHORT_CALL, with_token=False) as answer:
                await answers.read(answer, _PING_BYTES)
        health = await super().ask_health()
        if not health.agent and "agent" in health.model_fields_set:
            # Who it is, an agent says only to those who have its token.
            text = "it does not take the token of the settings: give it one of the agent's tokens"
            raise Unreachable(self._say(text), sent=False)
        if not health.agent:
            raise Unreachable(
                self._say(
                    f"what answers at {self.base} is not a Ferryman agent (a job-orchestrator "
                    "client is given by upload_url, download_url and terminate_url)"
                ),
                sent=False,
            )
        return health

    # -- sending

    async def submit(self, job: Job, service: Service, inputs: Inputs | None = None) -> PayloadDoc:
        assert job.bundle is not None, "only Cleaned jobs have none"
        if job.parent_id is None or inputs is not None:
            return await self._submit(
                job, order_of(job, service, self._server, inputs=inputs), inputs
            )
        order = order_of(job, service, self._server, keep_bundle=True)

        async def without_bundle() -> PayloadDoc:
            return self._ordered(await self._sender.order(SmallOrder(order)), job)

        return await self._sent_bundles.send(
            job.bundle, lambda: self._submit(job, order), without_bundle
        )

    async def _submit(self, job: Job, order: Order, inputs: Inputs | None = None) -> PayloadDoc:
        assert job.bundle is not None, "only Cleaned jobs have none"
        size = job.bundle.size
        async with self._sessions.contents.open(FileKind.BUNDLE, job.bundle) as bundle:
            whole = size + (0 if inputs is None else inputs.size)
            source = _one_after_the_other(bundle, None if inputs is None else inputs.file)
            if whole > SMALL:
                return self._ordered(await self._sender.stream(order, size, source, whole), job)
            content = b"".join([chunk async for chunk in source])
        return self._ordered(await self._sender.order(SmallOrder(order, size, content)), job)

    def _ordered(self, answer: OrderAnswer, job: Job) -> PayloadDoc:
        if answer.payload is None:
            code, message = answer.code or "refused", answer.message[:500]
            raise self._judge(answers.refused(answer.status, code, message, answer.retry_after_s))
        try:
            return self._of(answer.payload, job)
        except ValueError as problem:
            raise Unreachable(self._say(problem), sent=True) from problem

    async def acknowledge(self, payload_id: int, key: str | None = None) -> None:
        await self._sender.acknowledge(PayloadRef(id=payload_id, key=key))

    async def _post_payloads(self, body: Body, orders: int) -> PayloadsAnswer:
        content = await self._post(f"{self.base}/payloads", body)
        try:
            answer = PayloadsAnswer.model_validate_json(content)
        except ValueError as problem:
            raise Unreachable(self._say(problem), sent=True) from problem
        if len(answer.answers) != orders:
            raise Unreachable(self._say("it has not answered each order"), sent=True)
        return answer

    # -- what it has

    async def settle(self, job: Job, *, kill: bool = False) -> PayloadDoc | None:
        url = f"{self.base}/keys/{self._server}/{job.key}/settle"
        params = {"kill": "1"} if kill else {}
        async with self._call("POST", url, params=params) as answer:
            payload = (await answers.document(answer, Settled)).payload
            return None if payload is None else self._of(payload, job)

    async def fetch(self, payload_id: int, to: ScratchFile, most: int | None = None) -> ResultInfo:
        return await self._download(f"{self.base}/retrieve_partial/{payload_id}", to, most)

    async def partial(self, job: Job, to: ScratchFile) -> ResultInfo:
        payload = await self.settle(job)  # by its key: a number may be another job's by now
        if payload is None or not outcome.is_of(job, payload, self.name):
            raise NoSuchPayload(f"agent {self.name} does not have job {job.id}")
        return await self.fetch(payload.id, to, outcome.most_result(job.limits))

    async def kill(self, payload_id: int, key: str | None = None) -> PayloadDoc | None:
        # A restored server uses its own name for payloads of the server that it replaces, too.
        params = {"server": self._server} | ({} if key is None else {"key": key})
        async with self._call("POST", f"{self.base}/kill/{payload_id}", params=params) as answer:
            payload = await answers.document(answer, PayloadDoc)
            if payload.id != payload_id:
                raise ValueError(f"payload {payload.id} in place of payload {payload_id}")
            return payload

    async def payloads(self, after: int = 0) -> PayloadList:
        """A page of what it holds for this server."""
        page = await self._page(self._server, after)
        ours = [payload for payload in page.payloads if self.is_ours(payload)]
        return page.model_copy(update={"payloads": ours})

    async def pages(self, first: PayloadList) -> AsyncIterator[PayloadList]:
        """A page, and those behind it."""
        page, held = first, 0
        yield page
        while page.next is not None:
            held += 1 + len(page.payloads)
            if held > _MOST_PAYLOADS:
                raise Unreachable(self._say("its list has no end"), sent=True)
            page = await self.payloads(page.next)
            yield page

    async def end_former(self) -> None:
        """Kill and forget all that it holds for former servers; return when none of it runs.

        The restored server may have the same jobs in its queue, or may not know them:
        before the agent is given any of them, nothing of the former ones may run there.
        """
        for server in self._former:
            after: int | None = 0
            while after is not None:
                page = await self._page(server, after)
                found = [one for one in page.payloads if one.server == server]
                for payload in found:
                    if payload.status not in outcome.ENDED:
                        await self.kill(payload.id, payload.key)
                    log.warning("payload.former", agent=self.name, key=payload.key)
                await asyncio.gather(*(self.acknowledge(one.id, one.key) for one in found))
                after = page.next

    async def _page(self, server: str, after: int) -> PayloadList:
        params = {"server": server, "after": str(after)}
        async with self._call("GET", f"{self.base}/payloads", params=params) as answer:
            page = await answers.document(answer, PayloadList)
            if page.next is not None and page.next <= after:
                raise ValueError("a page of its list that leads back")
            return page

    # -- what an attempt writes while it runs

    async def size(self, job: Job, part: str) -> int:
        """Bytes of a file of the job's current attempt as it is now.

        Args:
            part: ``logs/stdout``, ``logs/stderr``, or ``files/`` and its path, percent-encoded.

        Raises:
            RefusedByAgent: code ``file_not_found``.
            NoSuchPayload: the attempt does not run any more: what it left is in its result.
        """
        async with self._live(job, part, {"offset": _NO_BYTES}) as answer:
            said = answer.headers.get(FILE_SIZE if part.startswith("files/") else LOG_SIZE, "")
            size = whole_number(said)
            if size is None:
                raise ValueError("an answer without a size")
            return size

    async def content(self, job: Job, part: str, **query: int) -> AsyncGenerator[bytes, None]:
        """Its bytes. Raises as :meth:`size`.

        Args:
            query: ``offset``; of a file ``stop``, the position behind the last byte: they are fewer
                where it has changed; of a log ``follow``, 1: goes on with what the attempt writes
                until it has ended, or wrote nothing for a while.
        """
        async with self._live(job, part, query) as answer:
            while chunk := await answer.content.readany():
                yield chunk

    async def list_files(self, job: Job, after: str, limit: int) -> RunningFiles:
        """The files that the job's current attempt has now, behind the path ``after``; not more
        than ``limit``. Raises NoSuchPayload: it does not run any more: they are in its result.
        """
        query: dict[str, str | int] = {"after": after, "limit": limit}
        async with self._live(job, "files", query, "application/json") as answer:
            return await answers.document(answer, RunningFiles)

    @asynccontextmanager
    async def _live(
        self,
        job: Job,
        part: str,
        query: Mapping[str, str | int],
        content_type: str = "application/octet-stream",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer about the job's current attempt. ``part``: of the payload's address,
        percent-encoded. Raises NoSuchPayload: it does not run any more.
        """
        url = f"{self.base}/payloads/{job.payload_id}/{part}"
        named = URL(url, encoded=True).update_query({"key": str(job.key), **query})
        try:
            async with self._call("GET", str(named), timeout=_STREAM) as answer:
                if answer.content_type != content_type:
                    raise ValueError(f"{answer.content_type} in place of {content_type}")
                yield answer
        except RefusedByAgent as problem:
            if problem.code in _GONE:
                raise NoSuchPayload(str(problem)) from problem
            raise

    # -- helpers

    async def listen(self, after: int) -> AsyncIterator[Heard]:
        """What it says of payloads of ours; ends, or raises Unreachable, as the connection does."""
        params = {"after": after, "server": self._server}
        params |= {"results": MAX_RESULT, "quick_ms": QUICK_MS}
        async with self._call(
            "GET", f"{self.base}/events", params=params, timeout=_STREAM
        ) as answer:
            async for heard in read_events(answer.content, self._clock):
                payload = heard.event.payload
                if payload is None or self.is_ours(payload):
                    if heard.result is not None:
                        self.count("result", "ok", len(heard.result))
                    yield heard

    async def _refusal(self, answer: aiohttp.ClientResponse) -> AgentError:
        return self._judge(await super()._refusal(answer))

    def _judge(self, problem: AgentError) -> AgentError:
        if isinstance(problem, RefusedByAgent) and problem.code == "stale_start":
            self.taken_over = True
            self.state_changed.set()
            return Unreachable(self.excluded, sent=False)
        return problem

    def is_ours(self, payload: PayloadDoc) -> bool:
        """Whether it can be a payload of this server at all."""
        ours = AttemptKey.read(payload.key) is not None and payload.server == self._server
        if not ours:
            log.warning("payload.not_ours", agent=self.name, key=payload.key, server=payload.server)
        return ours

    def _of(self, payload: PayloadDoc, job: Job) -> PayloadDoc:
        """Raises ValueError: it is another attempt's."""
        if payload.server != self._server or payload.key != str(job.key):
            raise ValueError(f"payload {payload.key} in place of {job.key}")
        return payload


async def _one_after_the_other(*streams: AsyncIterable[bytes] | None) -> AsyncIterator[bytes]:
    for stream in streams:
        if stream is not None:
            async for chunk in stream:
                yield chunk


async def read_events(stream: aiohttp.StreamReader, clock: Clock) -> AsyncIterator[Heard]:
    """The events, until the stream ends.

    Raises:
        ValueError: it is not an agent's stream.
        TimeoutError: it has sent nothing for too long.
        aiohttp.ClientError
    """
    lines, silent_s = 0, None
    while line := await _line(stream, silent_s):
        lines += 1
        if not lines % _LINES:
            await clock.sleep(0.0)
        if not line.strip():
            continue
        event = AgentEvent.model_validate_json(line)
        if event.status is not None:
            silent_s = SILENT_S
        yield Heard(event, await _result(stream, event, silent_s), len(line))


async def _line(stream: aiohttp.StreamReader, silent_s: float | None) -> bytes:
    try:
        async with asyncio.timeout(silent_s):
            return await stream.readline(max_line_length=_LINE_BYTES)
    except LineTooLong:
        raise ValueError("a line without end among its events") from None


async def _result(
    stream: aiohttp.StreamReader, event: AgentEvent, silent_s: float | None
) -> bytes | None:
    if not event.result_bytes:
        return None
    if event.payload is None or event.result_bytes > MAX_RESULT:
        raise ValueError("a result among its events that was not asked for")
    try:
        async with asyncio.timeout(silent_s):
            return await stream.readexactly(event.result_bytes)
    except asyncio.IncompleteReadError:
        raise ValueError("its events end within a result") from None
