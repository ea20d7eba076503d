"""Cancel in every state: when the answer says cancelled, no process of the job is alive and none
will start.

The request is written down first, so that it survives the process; from then on the Sender does not
claim the job and nothing queues it again. A Ferryman agent is asked by the attempt's key: it kills
the attempt, or promises never to take it. What cannot be confirmed is not said: the job of an agent
that is away, or has been taken out of the settings, stays as it is until the agent is back or is
given up as lost.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from server.domain import ending, outcome
from server.domain.agents import AgentError, NoSuchPayload
from server.domain.errors import AlreadyEnded, NoSuchJob
from server.domain.jobs import Job, Move
from server.stages.get import UNKNOWN_AFTER, Get
from server.stages.read import read_job
from server.stages.stage import AgentTasks, Core, Stage
from server.store import jobs
from shared.clock import wait_for
from shared.principals import Principal
from shared.wire import JobState, PayloadDoc, PayloadState

log = structlog.get_logger()
PATIENCE_S: Final = 25.0
"""For which a cancel waits for the death of the processes: proxies wait for an answer for 30 s."""
_CHECK_AGAIN_S: Final = 5.0
"""Until a job is read again that another stage has to move, if no move is seen."""


class Cancel(Stage):
    """Cancels jobs."""

    def __init__(self, core: Core, get: Get) -> None:
        super().__init__(core)
        self._inbox = get.inbox
        self._no_room = get.results
        self._tasks = AgentTasks[int]("cancel.failed")
        self.stop = self._tasks.stop
        """The requests to cancel stay stored."""

    async def __call__(
        self, principal: Principal, job_id: int, patience_s: float | None = None
    ) -> Job:
        """Cancel a job.

        Args:
            patience_s: how long it may take; None: PATIENCE_S.

        Returns:
            The job: Cancelled; or not ended yet when the patience is over: then it will be, as soon
            as its agent can be reached.

        Raises:
            NotAllowed, NoSuchJob
            AlreadyEnded: it ended in another way, before or while it was being cancelled.
        """
        await read_job(self.core.database, principal, job_id)
        job = await self._request_cancel(job_id, self.core.clock.now(), principal.name)
        if not job.ended:
            done = asyncio.Event()
            self._start(job).add_done_callback(lambda _: done.set())
            patience_s = PATIENCE_S if patience_s is None else patience_s
            await wait_for(done, patience_s, self.core.clock)
            job = await self.core.database.read(jobs.get, job_id)
        if job.ended and job.state is not JobState.CANCELLED:
            raise AlreadyEnded(job.id, job.state)
        return job

    async def run_once(self) -> int:
        """Take up what could not be cancelled when it was asked for."""
        for job in await self.core.database.read(jobs.to_cancel):
            self._start(job)
        return 0

    def _start(self, job: Job) -> asyncio.Task[None]:
        return self._tasks.start(job.agent or "", job.id, partial(self._cancel, job.id))

    async def _cancel(self, job_id: int) -> None:
        try:
            with self.core.wakeups.of(job_id) as changed:
                while True:
                    changed.clear()  # before it is read: no move is missed
                    job = await self.core.database.read(jobs.get, job_id)
                    if job.ended or job.cancel_requested_at is None:
                        break  # in another way, or it was retried by hand since
                    if not await self._try(job):
                        await wait_for(changed, _CHECK_AGAIN_S, self.core.clock)
        except AgentError as problem:
            log.info("cancel.waits", job_id=job_id, error=str(problem))
        except NoSuchJob:
            pass  # deleted as soon as it had ended

    async def _try(self, job: Job) -> bool:
        """One try. False: another stage has to move the job first. Raises AgentError: the agent
        cannot do it now.
        """
        if job.state is JobState.QUEUED:
            return await self._cancelled(job, "cancelled before it was started")
        if job.deferred:
            return False  # its children are cancelled; it ends with the last of them
        agent = self.core.registry.named(job.agent or "")
        if agent is None:
            raise AgentError(f"agent {job.agent} is not in the server's settings")
        payload: PayloadDoc | None = None
        if agent.supports_events:
            payload = await agent.settle(job, kill=True)
            if payload is not None and not outcome.is_of(job, payload, agent.name):
                payload = None  # another bundle's, and the agent takes no other under its key
        elif job.state is JobState.PROCESSING:
            return False  # no key to settle: the delivery's end comes first
        else:
            assert job.payload_id is not None, "set by the move to Submitted"
            with suppress(NoSuchPayload):
                payload = await agent.kill(job.payload_id)
        if payload is None or payload.status is PayloadState.KILLED:
            cancelled = await self._cancelled(job, "cancelled")
            if payload is not None:
                self._inbox.put(agent, payload)
            return cancelled
        if payload.status in outcome.ENDED:
            which = agent.name, payload.id
            if which in self._no_room:  # else a result that never fits could never be got rid of
                message = "cancelled; its result found no room on the server's disk"
                if cancelled := await self._cancelled(job, message):
                    self._no_room.done(which)
                return cancelled
            if self._inbox.tries(which) >= UNKNOWN_AFTER:
                return await self._cancelled(job, "cancelled; its result could not be fetched")
            self._inbox.put(agent, payload)  # it ended before the cancel: its end counts
        return False

    async def _cancelled(self, job: Job, message: str) -> bool:
        """End it, unless another attempt or its children are under way by now. Raises NoSuchJob."""

        def rule(now: Job) -> Move | None:
            has_children = now.deferred and now.state is JobState.RUNNING
            is_asked_for = now.cancel_requested_at is not None and not now.ended
            if now.key != job.key or has_children or not is_asked_for:
                return None
            return self._decide(ending.end, now, JobState.CANCELLED, message)

        return await self.core.database.write(jobs.change, job.id, rule) is not None
