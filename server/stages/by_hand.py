"""What is done with a job by hand: one that has failed or was cancelled is retried; one that has
ended is deleted with all that it left, one that has not is cancelled and kept.
"""

from __future__ import annotations

from contextlib import suppress

import structlog

from server.domain import ending
from server.domain.errors import AlreadyEnded, RetryRefused
from server.domain.jobs import Job, Move
from server.stages.cancel import Cancel
from server.stages.read import read_job
from server.stages.stage import Core, Stage
from server.store import jobs, requests, retention
from shared.principals import Principal

log = structlog.get_logger()


class Delete(Stage):
    """Deletes jobs."""

    def __init__(self, core: Core, cancel: Cancel) -> None:
        super().__init__(core)
        self._cancel = cancel

    async def __call__(
        self, principal: Principal, job_id: int, patience_s: float | None = None
    ) -> Job | None:
        """Delete a job that has ended; cancel one that has not.

        Returns:
            None: it is gone. Else the job, which had not ended, as it is after the cancel.

        Raises:
            NotAllowed, NoSuchJob, ChildOfBatch
            StillNeeded: others wait for it. Nothing was changed.
        """
        job = await read_job(self.core.database, principal, job_id)
        if job.ended:
            await self.finish(job)
            return None
        with suppress(AlreadyEnded):
            return await self._cancel(principal, job_id, patience_s)
        return await self.core.database.read(jobs.get, job_id)

    async def forget(self, principal: Principal, job_id: int) -> Job | None:
        """Delete a job in any state, for an operator. That is written down first, so that a restart
        goes on with it: what cannot be cancelled now is deleted by the Cleaner once it has ended.
        Raises NoSuchJob, ChildOfBatch, StillNeeded.

        Returns:
            None: it is gone. Else the job, which will be as soon as none of its processes is alive.
        """
        now, by = self.core.clock.now(), principal.name
        job = await self._request_cancel(job_id, now, by, requests.request_forget)
        with suppress(AlreadyEnded):
            if not job.ended:
                job = await self._cancel(principal, job_id, 0.0)
            if not job.ended:
                return job
        await self.finish(job)
        return None

    async def finish(self, job: Job) -> None:
        """Delete an ended job: its row, history and files. Raises NoSuchJob, NotEnded."""
        is_gone = False
        while not is_gone:
            is_gone, files = await self.core.database.write(retention.delete, job.id)
            await self.core.storage.delete(files)
        log.info("job.deleted", job_id=job.id)


class RetryByHand(Stage):
    """Retries jobs that have ended, dead letters among them."""

    async def __call__(self, principal: Principal, job_id: int) -> Job:
        """Begin a new run of a job.

        Returns:
            The job, Queued.

        Raises:
            NotAllowed, NoSuchJob
            RetryRefused: it has not ended, has completed, or its bundle is gone.
            OverQuota: its user has as many jobs waiting as the service allows.
        """
        job = await read_job(self.core.database, principal, job_id)
        now, by = self.core.clock.now(), principal.name

        def rule(job: Job) -> Move:
            return ending.retried(job, self.core.services.get(job.service), now, by)

        def most_queued(job: Job) -> int:
            return self._service(job.service).queued_of(job.user_id)

        queued = await self.core.database.write(requests.retry, job_id, rule, most_queued)
        if queued is None:
            why = f"its parent, job {job.parent_id}, does not wait for it: retry that one"
            raise RetryRefused(job_id, "parent_ended", why)
        log.info("job.retried", job_id=job_id, run=queued.run, by=by)
        return queued
