"""Agents that do not tell, or have fallen silent.

A job-orchestrator client has no event stream: its payloads are asked for one by one, its wall times
are watched here. The jobs of an agent that cannot be reached become Unknown, and after a long
silence are given up for lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from server.domain import endings, outcome, states
from server.domain.jobs import Job, Move
from server.domain.quotas import Service
from server.ports import (
    Agent,
    AgentError,
    Files,
    Fleet,
    Jobs,
    NoSuchPayload,
    RefusedByAgent,
    Unreachable,
)
from server.stages.get import Get, sealed
from shared.clock import SECOND, Clock, Micros
from shared.durations import say_duration
from shared.wire import JobState, PayloadDoc, Reason

log = structlog.get_logger()
S = JobState
_SPARE_S: Final = 30.0  # beyond the wall time, before an attempt is stopped from here


class Poll:
    """The part of the Getter that asks.

    Args:
        unreachable_after_s: silence of an agent until its jobs are Unknown.
        lost_after_s: silence until they are given up for lost.
    """

    def __init__(
        self,
        jobs: Jobs,
        files: Files,
        fleet: Fleet,
        services: Mapping[str, Service],
        clock: Clock,
        get: Get,
        *,
        unreachable_after_s: float,
        lost_after_s: float,
    ) -> None:
        self._jobs, self._files, self._fleet, self._get = jobs, files, fleet, get
        self._services, self._clock = services, clock
        self._unreachable_after_s, self._lost_after_s = unreachable_after_s, lost_after_s
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._failing_since: dict[int, Micros] = {}

    async def run_once(self) -> int:
        """Ask each polled agent for its jobs; judge the silent ones. Returns how many jobs were
        moved.
        """
        moved = 0
        for job in await self._jobs.in_states(states.AT_AGENT):
            agent = self._fleet.named(job.agent or "")
            silent_since = self._fleet.silent_since(job.agent or "")
            if agent is None or silent_since is not None:
                moved += await self._silent(
                    job, silent_since or self._clock.now(), f"agent {job.agent} cannot be reached"
                )
            elif not agent.tells and job.id not in self._asking:
                self._asking[job.id] = asyncio.create_task(self._ask(agent, job))
        return moved

    async def stop(self) -> None:
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _silent(self, job: Job, since: Micros, what: str) -> bool:
        now = self._clock.now()
        silence_s = (now - since) / SECOND
        if silence_s > self._lost_after_s:
            await self._get.lost(
                job, f"{what} for {say_duration(silence_s)}: the attempt is given up for lost"
            )
            return True
        if silence_s > self._unreachable_after_s and job.state is not S.UNKNOWN:
            message = f"{what} for {say_duration(silence_s)}; the job goes on when it is back"
            move = Move(
                job.id, job.attempt, job.state, S.UNKNOWN, now, message, Reason.AGENT_UNREACHABLE
            )
            return await self._jobs.move(move) is not None
        return False

    async def _ask(self, agent: Agent, job: Job) -> None:
        assert job.payload_id is not None, "set by the move to Submitted"
        try:
            await self._look(agent, job, job.payload_id)
        except NoSuchPayload:
            await self._get.lost(job, f"agent {agent.name} does not know the job any more")
        except (Unreachable, RefusedByAgent, OSError) as problem:
            # An error for ever must not hold the slot for ever: it counts as silence.
            since = self._failing_since.setdefault(job.id, self._clock.now())
            await self._silent(job, since, f"agent {agent.name} answers with an error ({problem})")
        except Exception:
            log.exception("poll.failed", job_id=job.id, agent=agent.name)
        else:
            self._failing_since.pop(job.id, None)
        finally:
            del self._asking[job.id]

    async def _look(self, agent: Agent, job: Job, payload_id: int) -> None:
        with self._files.staging() as staged, self._files.sealing("results") as sealing:
            payload, fetched = await agent.look(payload_id, staged)
            if payload is None:
                return
            if fetched is None and payload.status in outcome.ENDED:
                try:
                    fetched = await agent.fetch(payload_id, staged)
                except AgentError as problem:
                    log.info("payload.left_nothing", job_id=job.id, error=str(problem))
            result = await sealed(sealing, staged, fetched) if fetched is not None else None
            if await self._get.follow(agent, job, payload, result):
                sealing.keep()
        if payload.status not in outcome.ENDED:
            await self._watch_time(agent, job, payload)

    async def _watch_time(self, agent: Agent, job: Job, payload: PayloadDoc) -> None:
        """A job-orchestrator client has no wall time of its own."""
        now = self._clock.now()
        if job.started_at is None or now - job.started_at < (job.timeout_s + _SPARE_S) * SECOND:
            return
        await agent.kill(payload.id)
        service = self._services.get(job.service, Service(job.service))
        await self._jobs.move(
            endings.end(
                job,
                S.FAILED,
                service,
                now,
                f"stopped after {say_duration(job.timeout_s)}, the wall time limit",
                Reason.TIMEOUT,
            )
        )
