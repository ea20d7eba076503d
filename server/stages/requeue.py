"""Back into the queue by an operator, where neither the server's own rules nor a retry do it.

Never two attempts at once: of a job that an agent may have, the agent has to say that it has it
not, and never will; or the operator says that the agent's host is lost.
"""

from __future__ import annotations

import structlog

from server.domain import ending, outcome
from server.domain.errors import RetryRefused
from server.domain.jobs import Job, Move
from server.domain.manual_retry import requeue_event, requeued
from server.domain.retry import Retry
from server.ports import AgentError, NoSuchPayload
from server.stages.read import read_job
from server.stages.stage import Stage
from shared.principals import Principal
from shared.wire import JobState, PayloadDoc, Reason

log = structlog.get_logger()


class Requeue(Stage):
    """Queues a job again."""

    async def __call__(
        self,
        principal: Principal,
        job_id: int,
        *,
        service: str | None = None,
        lost: bool = False,
        dry_run: bool = False,
    ) -> Job:
        """Queue a job again, in this service from now on.

        Args:
            service: None: as before.
            lost: its agent cannot be reached, and will not come back.
            dry_run: only look whether it can be done.

        Returns:
            The job: Queued; with ``dry_run``, as it is.

        Raises:
            NotAllowed, NoSuchJob
            RetryRefused: it cannot be done; the text says why.
            QueueFull
        """
        while True:
            job = await read_job(self._jobs, principal, job_id)
            name = service or job.service
            move = await self._move(job, name, principal.name, lost=lost)
            if dry_run:
                return job
            of_service = self._services.get(name)
            most = of_service.queued_of(job.user_id) if of_service else 0
            queued = await self._jobs.retry(move, job, most)
            if queued is not None:
                log.info(
                    "job.queued_again",
                    job_id=job_id,
                    before=job.state,
                    service=name,
                    by=principal.name,
                )
                return queued
            now = await self._jobs.get(job_id)
            if (now.state, now.attempt, now.run) == (job.state, job.attempt, job.run):
                why = f"its parent, job {job.parent_id}, does not wait for it: retry that one"
                raise RetryRefused(job_id, "parent_ended", why)

    async def _move(self, job: Job, name: str, by: str, *, lost: bool) -> Move:
        now, service = self._clock.now(), self._services.get(name)
        if job.ended:
            return requeued(job, service, name, now, by)
        if job.state is JobState.QUEUED:
            why = "it is in the queue; ferryman services move takes it into another service"
            raise RetryRefused(job.id, "not_retryable", why)
        if job.deferred:
            raise RetryRefused(job.id, "not_retryable", "it waits for its children: requeue those")
        if job.cancel_requested_at is not None:
            raise RetryRefused(job.id, "not_retryable", "it is being cancelled: wait until it is")
        if service is None:
            why = f"the server has no service {name} in its settings"
            raise RetryRefused(job.id, "unknown_service", why)
        await self._check_not_at_agent(job, lost=lost)
        message = f"requeued by {by}: agent {job.agent} " + (
            "is lost" if lost else "does not have it"
        )
        changes = {"service": name}
        move = ending.requeue(
            job, service, now, message, Reason.AGENT_LOST, Retry(0.0), changes=changes
        )
        event = requeue_event(job, name, by)
        return ending.move(
            job, JobState.QUEUED, now, move.message, move.reason, changes=move.changes, **event
        )

    async def _check_not_at_agent(self, job: Job, *, lost: bool) -> None:
        """Raises RetryRefused unless no attempt runs now, or will."""
        agent = self._fleet.named(job.agent or "")
        reachable = agent is not None and agent.reachable
        if lost:
            if reachable:
                why = f"agent {job.agent} can be reached, so it is not lost; ask it without lost"
                raise RetryRefused(job.id, "agent_reachable", why)
            return
        if agent is None or not reachable or self._fleet.lease(job.agent or "") is None:
            why = (
                f"agent {job.agent} cannot be asked whether its attempt runs; if its host is off "
                "and stays off, say so (lost)"
            )
            raise RetryRefused(job.id, "agent_unreachable", why)
        payload: PayloadDoc | None = None
        try:
            if agent.supports_events:
                payload = await agent.settle(job)
            elif job.payload_id is None:
                why = f"it is being sent to agent {job.agent}: wait until that is over"
                raise RetryRefused(job.id, "not_retryable", why)
            else:
                payload = await self._polled(job)
        except AgentError as problem:
            raise RetryRefused(job.id, "agent_unreachable", f"{problem}") from None
        if payload is not None and outcome.is_of(job, payload, agent.name):
            if payload.status in outcome.ENDED:
                why = f"its attempt has ended at agent {agent.name}, and is being fetched"
            else:
                why = f"agent {agent.name} has its attempt: cancel the job, then requeue it"
            raise RetryRefused(job.id, "not_retryable", why)

    async def _polled(self, job: Job) -> PayloadDoc | None:
        """Of a job-orchestrator client, what it says without a key."""
        agent = self._fleet.named(job.agent or "")
        assert agent is not None, "asked before"
        assert job.payload_id is not None, "asked before"
        async with self._scratch.file() as content:
            try:
                payload, _ = await agent.poll(job.payload_id, content)
            except NoSuchPayload:
                return None
        if payload is None:
            why = f"client {agent.name} says nothing of its attempt: cancel it, then requeue it"
            raise RetryRefused(job.id, "not_retryable", why)
        return payload
