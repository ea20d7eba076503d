"""Queued → Processing → Submitted: pick whom to serve next, claim the job, give it to an agent.

A sweep claims and leaves; deliveries run beside each other, so that a slow agent holds up only its
own. After an ambiguous failure the agent is asked for that very key (``ports.Agent.settle``) before
another attempt is minted, so that there are never two at once.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import structlog

from server.domain import endings, fairshare
from server.domain.fairshare import Waiting
from server.domain.jobs import Job, Move
from server.domain.quotas import Service
from server.domain.retry import Again
from server.ports import Agent, Files, Fleet, Jobs, RefusedByAgent, Unreachable
from shared.clock import SECOND, Clock
from shared.durations import say_duration
from shared.wire import JobState, PayloadDoc, PayloadState, Reason

log = structlog.get_logger()
S = JobState
_ASK_AGAIN_S: Final = (0.2, 1.0, 5.0, 15.0)
_REFUSED_S: Final = 60.0  # until an agent that does not offer a service is offered it again
_BUSY_S: Final = 5.0  # until a job is offered again to an agent that could not take it now
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What this machine is short of, and says nothing about the bundle."""
_STUCK_EVERY_S: Final = 2.0
_OVERDUE_AT_ONCE: Final = 100
_REASONS: Final = {"not_offered": Reason.NOT_OFFERED, "invalid_bundle": Reason.INVALID_BUNDLE}


class Send:
    """The Sender.

    Args:
        told: hands a payload that is past Prepared to the Getter.
        lost_after_s: silence of an agent until what was sent to it is given up for lost.
    """

    def __init__(
        self,
        jobs: Jobs,
        files: Files,
        fleet: Fleet,
        services: Mapping[str, Service],
        clock: Clock,
        told: Callable[[Agent, PayloadDoc], None],
        *,
        lost_after_s: float,
    ) -> None:
        self._jobs, self._files, self._fleet = jobs, files, fleet
        self._services, self._clock, self._told = services, clock, told
        self._lost_after_s = lost_after_s
        self._served: dict[str, str] = {}
        """service -> the user served last; the next in the ring is due."""
        self._stuck_due = clock.monotonic()
        self._deliveries: dict[int, asyncio.Task[None]] = {}
        """job id -> its delivery"""

    async def run_once(self) -> int:
        """Claim what the quotas allow and start its delivery; take up deliveries that died.

        Returns:
            How many jobs were moved.
        """
        if self._clock.monotonic() >= self._stuck_due:
            await self._take_up_stuck()
        if not await self._jobs.anything_queued():
            return 0
        await self._jobs.release_delayed(self._clock.now())
        held = await self._jobs.held()
        load = Counter[str]()
        for one in held:
            load[one.agent] += one.slots
        claims = []
        overdue = 0
        for service in self._services.values():
            overdue += await self._give_up_waiting(service)
            if self._fleet.choose(service.name, load) is None:
                continue
            mine = Counter[str]()
            for one in held:
                if one.service == service.name:
                    mine[one.user_id] += one.slots
            for waiting in await self._due(service, mine):
                agent = self._fleet.choose(service.name, load)
                assert agent is not None, "nothing was awaited since it was chosen first"
                load[agent.name] += 1
                claims.append(self._claim(waiting, agent))
        claimed = await self._jobs.claim(claims) if claims else []
        for job in claimed:
            self._start(job, self._deliver(job))
        return overdue + len(claimed)

    async def _take_up_stuck(self) -> None:
        """Deliveries begun by a former life of the server, or broken off by a fault of ours."""
        for job in await self._jobs.in_states([S.PROCESSING]):
            if job.id not in self._deliveries:
                self._start(job, self._find_out(job, "the delivery was interrupted"))
        self._stuck_due = self._clock.monotonic() + _STUCK_EVERY_S

    def _claim(self, waiting: Waiting, agent: Agent) -> Move:
        return Move(
            waiting.job_id,
            waiting.attempt,
            S.QUEUED,
            S.PROCESSING,
            self._clock.now(),
            f"being sent to agent {agent.name}",
            changes={"agent": agent.name},
        )

    async def _due(self, service: Service, held: Mapping[str, int]) -> list[Waiting]:
        """Whose turn it is: goes round the users once, from the one behind whom was served last."""
        free = fairshare.room(service, held)
        if not free:
            return []
        start = after = self._served.get(service.name, "")
        wrapped = not start
        queue: list[Waiting] = []
        while True:
            found, last = await self._jobs.waiting(
                service, after, free + len(held), min(free, service.runs_per_user)
            )
            if wrapped and start:
                found = [waiting for waiting in found if waiting.user_id <= start]
            queue += found
            chosen = fairshare.pick(queue, held, service)
            if len(chosen) == free or (wrapped and (last is None or last >= start > "")):
                break
            wrapped, after = (True, "") if last is None else (wrapped, last)
        if chosen:
            self._served[service.name] = chosen[-1].user_id
        return chosen

    async def _give_up_waiting(self, service: Service) -> int:
        if not service.queue_timeout_s:
            return 0
        now = self._clock.now()
        given_up = 0
        for job in await self._jobs.longest_queued(service.name, _OVERDUE_AT_ONCE):
            if now - job.queued_at < service.queue_timeout_s * SECOND:
                break
            message = (
                f"waited {say_duration(service.queue_timeout_s)} in the queue without a start, "
                "which is the most the service allows"
            )
            move = endings.end(job, S.FAILED, service, now, message, Reason.QUEUE_TIMEOUT)
            given_up += await self._jobs.move(move) is not None
        return given_up

    async def stop(self) -> None:
        """Break off the deliveries under way; the next start asks what became of them."""
        for task in self._deliveries.values():
            task.cancel()
        await asyncio.gather(*self._deliveries.values(), return_exceptions=True)

    def _start(self, job: Job, delivery: Coroutine[Any, Any, None]) -> None:
        self._deliveries[job.id] = asyncio.create_task(self._guarded(job, delivery))

    async def _guarded(self, job: Job, delivery: Coroutine[Any, Any, None]) -> None:
        try:
            await delivery
        except Exception:
            log.exception("delivery.failed", job_id=job.id)
        finally:
            del self._deliveries[job.id]

    async def _deliver(self, job: Job) -> None:
        agent = self._fleet.named(job.agent or "")
        assert agent is not None, "claimed for an agent that was there, and nothing was awaited"
        assert job.bundle is not None, "only Cleaned jobs have none"
        try:
            payload = await agent.submit(job, self._files.path("bundles", job.bundle.file))
        except Unreachable as problem:
            if problem.sent:
                await self._find_out(job, str(problem))
            else:
                await self._back(job, str(problem), _BUSY_S)
        except RefusedByAgent as refusal:
            await self._refused(job, refusal)
        except OSError as problem:
            if problem.errno in _PASSING:
                await self._back(job, f"it cannot be sent now: {problem.strerror}", _BUSY_S)
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
            if agent.up and not agent.tells:
                # A job-orchestrator client cannot be asked, and a second run at once is worse than
                # a failure.
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
                log.info("delivery.unsettled", job_id=job.id, agent=agent.name, error=str(problem))
                await self._clock.sleep(delay)
                tries += 1
                current = await self._jobs.get(job.id)
                if current.state is not S.PROCESSING or current.attempt != job.attempt:
                    return  # cancelled, or the Getter saw it
            else:
                if payload is None:
                    await self._back(job, f"{what}; agent {agent.name} does not have it", 0.0)
                else:
                    await self._submitted(job, agent, payload)
                return
        await self._interrupted(job, Reason.AGENT_LOST, f"{what}; agent {job.agent} is gone")

    def _is_lost(self, agent: str) -> bool:
        since = self._fleet.silent_since(agent)
        return since is not None and self._clock.now() - since > self._lost_after_s * SECOND

    async def _submitted(self, job: Job, agent: Agent, payload: PayloadDoc) -> None:
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
        if payload.status is not PayloadState.PREPARED:
            self._told(agent, payload)

    async def _refused(self, job: Job, refusal: RefusedByAgent) -> None:
        # Were it offered the next one, too, an agent that refuses all would always be the one with
        # the fewest jobs, and get every job.
        passing = None if refusal.final else refusal.retry_after_s
        rest = _REFUSED_S if refusal.code == "not_offered" else passing
        if rest is not None:
            what = f"agent {job.agent} does not take it now: {refusal}"
            self._fleet.avoid(job.agent or "", job.service, rest, what)
            if self._fleet.choose(job.service, {}) is not None:
                await self._back(job, what, 0.0)
                return
        if refusal.final:
            reason = _REASONS.get(refusal.code, Reason.AGENT_ERROR)
            await self._end(job, reason, f"agent {job.agent} refused it: {refusal}")
        elif passing is not None:
            await self._back(job, f"agent {job.agent} cannot take it now: {refusal}", passing)
        else:
            await self._interrupted(
                job, Reason.AGENT_ERROR, f"agent {job.agent} could not take it: {refusal}"
            )

    async def _back(self, job: Job, message: str, delay_s: float) -> None:
        """Not the job's fault and nothing was started: no budget pays for it."""
        how = Again(delay_s, job.infra_used, job.retries_used)
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
