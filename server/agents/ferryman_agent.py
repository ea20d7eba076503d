"""A Ferryman agent: keys, events, acknowledgements."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import aiohttp
import structlog

from server.agents import answers, event_lines
from server.agents.agent_client import SHORT_CALL
from server.agents.event_lines import MAX_RESULT, QUICK_MS, Heard
from server.agents.live_client import STREAM, LiveClient
from server.domain import outcome
from server.domain.jobs import Job
from server.ports import (
    AgentError,
    Fetched,
    NoSuchPayload,
    RefusedByAgent,
    ScratchFile,
    Unreachable,
)
from shared.ids import AttemptKey
from shared.wire import (
    AgentHealth,
    PayloadDoc,
    PayloadList,
    Settled,
)

log = structlog.get_logger()
_PING_BYTES: Final = 1 << 10
_MOST_PAYLOADS: Final = 100_000
"""Of a list, and pages of it: what reads it keeps the name of each."""


class FerrymanAgent(LiveClient):
    """A Ferryman agent.

    Args:
        former: of the servers that ours was restored in place of.
    """

    supports_events = True

    def __init__(
        self,
        *args: Any,
        former: Sequence[str] = (),
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._former = former

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

    async def settle(self, job: Job, *, kill: bool = False) -> PayloadDoc | None:
        url = f"{self.base}/keys/{self._server}/{job.key}/settle"
        params = {"kill": "1"} if kill else {}
        async with self._call("POST", url, params=params) as answer:
            payload = (await answers.document(answer, Settled)).payload
            return None if payload is None else self._of(payload, job)

    async def fetch(self, payload_id: int, to: ScratchFile, most: int | None = None) -> Fetched:
        return await self._download(f"{self.base}/retrieve_partial/{payload_id}", to, most)

    async def partial(self, job: Job, to: ScratchFile) -> Fetched:
        payload = await self.settle(job)  # by its key: a number may be another job's by now
        if payload is None or not outcome.is_of(job, payload, self.name):
            raise NoSuchPayload(f"agent {self.name} does not have job {job.id}")
        return await self.fetch(payload.id, to, outcome.most_result(job.limits))

    async def kill(self, payload_id: int, key: str | None = None) -> PayloadDoc | None:
        params = self._caller(key)
        async with self._call("POST", f"{self.base}/kill/{payload_id}", params=params) as answer:
            payload = await answers.document(answer, PayloadDoc)
            if payload.id != payload_id:
                raise ValueError(f"payload {payload.id} in place of payload {payload_id}")
            return payload

    async def poll(
        self, payload_id: int, to: ScratchFile
    ) -> tuple[PayloadDoc | None, Fetched | None]:
        raise NotImplementedError("a Ferryman agent is not polled")

    async def payloads(self, after: int = 0) -> PayloadList:
        """A page of what it holds for this server."""
        page = await self._page(self._server, after)
        ours = [payload for payload in page.payloads if self._is_ours(payload)]
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
                for payload in page.payloads:
                    if payload.server != server:
                        continue
                    if payload.status not in outcome.ENDED:
                        await self.kill(payload.id, payload.key)
                    await self.acknowledge(payload.id, payload.key)
                    log.warning("payload.former", agent=self.name, key=payload.key)
                after = page.next

    async def _page(self, server: str, after: int) -> PayloadList:
        params = {"server": server, "after": str(after)}
        async with self._call("GET", f"{self.base}/payloads", params=params) as answer:
            page = await answers.document(answer, PayloadList)
            if page.next is not None and page.next <= after:
                raise ValueError("a page of its list that leads back")
            return page

    async def events(self, after: int) -> AsyncIterator[Heard]:
        """Changes of payloads as they happen, small results with them; ends, or raises Unreachable,
        when the connection does.
        """
        wanted = {
            "after": str(after),
            "server": self._server,
            "results": str(MAX_RESULT),
            "quick_ms": str(QUICK_MS),
        }
        url = f"{self.base}/events"
        async with self._call("GET", url, params=wanted, timeout=STREAM) as answer:
            async for heard in event_lines.read(answer.content, self._clock):
                payload = heard.event.payload
                if payload is None or self._is_ours(payload):
                    if heard.result is not None:
                        self._count("result", "ok", len(heard.result))
                    yield heard

    async def _refusal(self, answer: aiohttp.ClientResponse) -> AgentError:
        return self._judge(await super()._refusal(answer))

    def _judge(self, problem: AgentError) -> AgentError:
        if isinstance(problem, RefusedByAgent) and problem.code == "stale_start":
            self.taken_over = True
            self.state_changed.set()
            return Unreachable(self.excluded, sent=False)
        return problem

    def _caller(self, key: str | None) -> dict[str, str]:
        """This server, and the payload's key. A restored server uses its own name for payloads of
        the server that it replaces, too.
        """
        return {"server": self._server} | ({} if key is None else {"key": key})

    def _is_ours(self, payload: PayloadDoc) -> bool:
        """Whether it can be a payload of this server at all."""
        try:
            AttemptKey.parse(payload.key or "")
        except ValueError:
            ours = False
        else:
            ours = payload.server == self._server
        if not ours:
            log.warning("payload.not_ours", agent=self.name, key=payload.key, server=payload.server)
        return ours
