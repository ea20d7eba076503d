"""Payloads that no job waits for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from server.agents.agent import Agent
from server.domain import outcome, states
from server.domain.agents import NoSuchPayload
from server.domain.jobs import Attempt, FileKind, Job
from server.stages.results import UNCHECKED, NoRoom, Results
from server.stages.stage import Core, Stage
from server.store import attempts
from shared.ids import AttemptKey
from shared.wire import JobState, PayloadDoc

log = structlog.get_logger()
_MAX_DISCARDS: Final = 8  # of one agent at once


class UnexpectedPayloads(Stage):
    """Ends them."""

    def __init__(self, core: Core, results: Results) -> None:
        super().__init__(core)
        self._results = results
        self._discards: dict[str, asyncio.Semaphore] = {}
        """agent -> its share of kills and acknowledgements"""

    async def end(
        self,
        agent: Agent,
        key: AttemptKey,
        payload: PayloadDoc,
        came: bytes | None,
        job: Job | None,
        attempt: Attempt | None,
    ) -> None:
        """End a payload that no job waits for, keep what it left, and let the agent delete it.

        Args:
            came: its result, where that came with its report, and is as announced.
            job: whose attempt it was, if that is known.
            attempt: as it was recorded, if it is past.
        """
        discards = self._discards.setdefault(agent.name, asyncio.Semaphore(_MAX_DISCARDS))
        if payload.status not in outcome.ENDED:
            log.warning("payload.stale", agent=agent.name, key=payload.key, status=payload.status)
            with suppress(NoSuchPayload):
                async with discards:
                    await agent.kill(payload.id, payload.key)
            return  # the agent reports its end
        kept = False
        lacks_result = attempt is not None and attempt.ended_at is not None and not attempt.result
        if lacks_result and job is not None:
            payload = outcome.bounded(job, payload)
            if payload.result is not None and payload.result.size > UNCHECKED:
                payload = await self._fitting(agent, payload, job)
        if lacks_result and payload.result is not None:
            async with self._storage.pending(FileKind.RESULT) as pending:
                result = await self._results.fetch(agent, payload, came, pending)
                kept = await self._database.write(attempts.attach_result, key, result)
                if kept:
                    pending.commit()
        if not kept and (job is None or job.state not in states.ENDED):
            why = "no job waits for it" if job is None else f"its job is {job.state} by now"
            log.warning("payload.dropped", agent=agent.name, key=payload.key, why=why)
        async with discards:
            await agent.acknowledge(payload.id, payload.key)

    async def _fitting(self, agent: Agent, payload: PayloadDoc, job: Job) -> PayloadDoc:
        """The payload; without its result if there is no room, and its job was cancelled: then
        nobody waits for it. Raises NoRoom: it has to wait.
        """
        payload = outcome.fitting(payload, await self._results.waiting.most())
        if payload.result is not None:
            try:
                await self._results.waiting.check((agent.name, payload.id), payload.result.size)
            except NoRoom as full:
                if full.is_brief or job.state is not JobState.CANCELLED:
                    raise
                log.warning("payload.dropped", agent=agent.name, key=payload.key, why=str(full))
                payload = payload.model_copy(update={"result": None})
        return payload
