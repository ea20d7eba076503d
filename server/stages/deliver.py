"""Processing → Submitted: give a claimed job to its agent, or find out what became of it.

Deliveries run beside each other, so that a slow agent holds up only its own. After an ambiguous
failure the agent is asked for that very key (``ports.Agent.settle``) before another attempt is
minted, so that there are never two at once.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import structlog

from server.domain import endings, outcome
from server.domain.backoff import Backoff
from server.domain.jobs import Job, Move
from server.domain.retry import Retry
from server.domain.service import Service
from server.ports import Agent, Files, Fleet, Jobs, RefusedByAgent, Unreachable
from server.stages.get import Get
from shared.clock import Clock
from shared.ids import AttemptKey
from shared.wire import JobState, PayloadDoc, PayloadState, Reason

log = structlog.get_logger()
S = JobState
_ASK_AGAIN_S: Final = (0.2, 1.0, 5.0, 15.0)
_NOT_OFFERED_S: Final = 60.0  # until an agent that does not offer a service is asked again
_BUSY_S: Final = 5.0  # until a job is sent again that could not be
_REFUSED_S: Final = 60.0  # at most, until a job that nobody took is sent again
_RESEND_LONGEST_S: Final = 300.0
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What this machine is short of, and says nothing about the bundle."""
_REASONS: Final = {"invalid_bundle": Reason.INVALID_BUNDLE}
_NEW_ATTEMPT: Final = frozenset({"stale_attempt", "key_refused", "digest_mismatch"})
"""Codes of an agent that takes the job under another attempt's number."""


class Deliver:
    """Sends claimed jobs.

    Args:
        get: is handed payloads that are past Prepared.
        lost_after_s: silence of an agent until what was sent to it is given up for lost.
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
        lost_after_s: float,
    ) -> None:
        self._jobs, self._files, self._fleet = jobs, files, fleet
        self._services, self._clock, self._get = services, clock, get
        self._lost_after_s = lost_after_s
        self._deliveries: dict[AttemptKey, asyncio.Task[None]] = {}
        self._resends = Backoff[int](1.0, _RESEND_LONGEST_S, free=1)
        """By job: what was sent and not taken, through no fault of its own."""

    def start(self, job: Job) -> None:
        """Begin the delivery of a job that has just been claimed."""
        self._start(job, self._deliver(job))

    async def take_up_stuck(self) -> None:
        """Deliveries begun by a previous run of the server, or broken off by a fault of ours."""
        for job in await self._jobs.in_states([S.PROCESSING]):
            if job.key not in self._deliveries:
                self._start(job, self._find_out(job, "the delivery was interrupted"))

    async def stop(self) -> None:
        """Break off the deliveries under way; the next start asks what became of them."""
        for task in self._deliveries.values():
            task.cancel()
        await asyncio.gather(*self._deliveries.values(), return_exceptions=True)

    def _start(self, job: Job, delivery: Coroutine[Any, Any, None]) -> None:
        self._deliveries[job.key] = asyncio.create_task(self._guarded(job, delivery))

    async def _guarded(self, job: Job, delivery: Coroutine[Any, Any, None]) -> None:
        try:
            await delivery
        except Exception:
            log.exception("delivery.failed", job_id=job.id)
        finally:
            del self._deliveries[job.key]

    async def _deliver(self, job: Job) -> None:
        agent = self._fleet.named(job.agent or "")
        assert agent is not None, "the fleet does not change"
        assert job.bundle is not None, "only Cleaned jobs have none"
        try:
            payload = await agent.submit(job, self._files.path("bundles", job.bundle.file))
        except Unreachable as problem:
            if problem.sent:
                await self._find_out(job, str(problem))
            else:
                await self._requeue(job, str(problem), _BUSY_S)
        except RefusedByAgent as refusal:
            await self._refused(job, agent, refusal)
        except OSError as problem:
            if problem.errno in _PASSING:
                await self._requeue(job, f"it cannot be sent now: {problem.strerror}", _BUSY_S)
                return
            await self._end(
                job, Reason.INVALID_BUNDLE, f"the stored bundle cannot be read: {problem}"
            )
        else:
            await self._submitted(job, agent, payload)

    async def _find_out(self, job: Job, what: str) -> None:
        """Ask the agent for the key until it answers: has it, or never will."""
        agent = self._fleet.named(job.agent or "")
        tries = 0
        while agent is not None and not self._is_lost(agent.name):
            if not agent.supports_events:
                # It cannot be asked, and a second run at once is worse than a failure.
                await self._end(
                    job,
                    Reason.AGENT_UNREACHABLE,
                    f"{what}; whether agent {agent.name} has started it cannot be asked there",
                )
                return
            try:
                payload = await agent.settle(job)
            except (Unreachable, RefusedByAgent) as problem:
                delay = _ASK_AGAIN_S[min(tries, len(_ASK_AGAIN_S) - 1)]
                if isinstance(problem, RefusedByAgent):
                    delay = max(delay, problem.retry_after_s or 0.0)
                log.info("delivery.unsettled", job_id=job.id, agent=agent.name, error=str(problem))
                await self._clock.sleep(delay)
                tries += 1
                current = await self._jobs.get(job.id)
                if current.state is not S.PROCESSING or current.attempt != job.attempt:
                    return  # cancelled, or the Getter saw it
            else:
                if payload is None:
                    delay = self._resends.failed(job.id)
                    await self._requeue(job, f"{what}; agent {agent.name} does not have it", delay)
                else:
                    await self._submitted(job, agent, payload)
                return
        await self._interrupted(job, Reason.AGENT_LOST, f"{what}; agent {job.agent} is gone")

    def _is_lost(self, agent: str) -> bool:
        silence_s = self._fleet.silent_s(agent)
        return silence_s is not None and silence_s > self._lost_after_s

    async def _submitted(self, job: Job, agent: Agent, payload: PayloadDoc) -> None:
        if not outcome.is_of(job, payload, agent.name):
            what = f"agent {agent.name} has another bundle under the job's key"
            await self._interrupted(job, Reason.AGENT_ERROR, what)
            return
        self._fleet.accepted(agent.name, job.service)
        self._resends.succeeded(job.id)
        now = self._clock.now()
        await self._jobs.move(
            Move(
                job.id,
                job.attempt,
                S.PROCESSING,
                S.SUBMITTED,
                now,
                f"agent {agent.name} has it",
                changes={"payload_id": payload.id, "submitted_at": now},
            )
        )
        if payload.status is not PayloadState.PREPARED and agent.supports_events:
            self._get.told(agent, payload)

    async def _refused(self, job: Job, agent: Agent, refusal: RefusedByAgent) -> None:
        if refusal.code in _NEW_ATTEMPT:
            delay = self._resends.failed(job.id)
            await self._requeue(job, f"agent {agent.name} refused it: {refusal}", delay)
            return
        if refusal.code == "submit_in_progress":
            await self._find_out(job, str(refusal))
            return
        offered = refusal.code != "not_offered"
        if (offered and refusal.final) or (not refusal.final and refusal.retry_after_s is None):
            message = f"agent {agent.name} refused it: {refusal}"
            if refusal.final:
                await self._end(job, _REASONS.get(refusal.code, Reason.AGENT_ERROR), message)
            else:
                await self._interrupted(job, Reason.AGENT_ERROR, message)
            return
        # It gets no other one for a while: an agent that refuses all would always be the one with
        # the fewest jobs, and get every job.
        what = f"agent {agent.name} does not take it now: {refusal}"
        rest = self._fleet.refused(
            agent.name,
            job.service,
            what,
            offered=offered,
            at_least_s=(refusal.retry_after_s or 0.0) if offered else _NOT_OFFERED_S,
        )
        if not self._fleet.offered(job.service):
            await self._end(job, Reason.NOT_OFFERED, f"agent {agent.name} refused it: {refusal}")
        elif self._fleet.choose(job.service, {}) is not None:
            await self._requeue(job, what, 0.0)
        else:
            await self._requeue(job, what, min(rest, _REFUSED_S))

    async def _requeue(self, job: Job, message: str, delay_s: float) -> None:
        """Not the job's fault and nothing was started: no budget pays for it."""
        how = Retry(delay_s, job.infra_used, job.retries_used)
        await self._move(job, lambda now, s: endings.again(job, s, now, message, None, how))

    async def _interrupted(self, job: Job, reason: Reason, message: str) -> None:
        await self._move(job, lambda now, s: endings.interrupted(job, s, now, message, reason))

    async def _end(self, job: Job, reason: Reason, message: str) -> None:
        await self._move(job, lambda now, s: endings.end(job, S.FAILED, s, now, message, reason))

    async def _move(self, job: Job, make: Callable[[int, Service], Move]) -> None:
        service = self._services.get(job.service, Service(job.service))
        moved = await self._jobs.move(make(self._clock.now(), service))
        log.info(
            "job.not_sent",
            job_id=job.id,
            attempt=job.attempt,
            agent=job.agent,
            state=moved.state if moved else "stale",
            message=moved.message if moved else "",
        )
