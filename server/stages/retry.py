"""Ended → Queued: a job is retried by hand."""

from __future__ import annotations

import structlog

from server.domain.errors import RetryRefused
from server.domain.jobs import Job
from server.domain.manual_retry import retried
from server.stages.read import read_job
from server.stages.stage import Stage
from shared.principals import Principal

log = structlog.get_logger()


class RetryByHand(Stage):
    """Retries jobs that have ended, dead letters among them."""

    async def __call__(self, principal: Principal, job_id: int) -> Job:
        """Begin a new run of a job.

        Returns:
            The job, Queued.

        Raises:
            NotAllowed, NoSuchJob
            RetryRefused: it has not ended, has completed, or its bundle is gone.
            QueueFull: its user has as many jobs waiting as the service allows.
        """
        while True:
            job = await read_job(self._jobs, principal, job_id)
            service = self._services.get(job.service)
            move = retried(job, service, self._clock.now(), principal.name)
            most_queued = service.queued_of(job.user_id) if service else 0
            queued = await self._jobs.retry(move, job, most_queued)
            if queued is not None:
                log.info("job.retried", job_id=job_id, run=queued.run, by=principal.name)
                return queued
            now = await self._jobs.get(job_id)
            seen, found = (
                (one.state, one.attempt, one.run, one.delete_requested_at) for one in (job, now)
            )
            if seen == found:
                why = f"its parent, job {job.parent_id}, does not wait for it: retry that one"
                raise RetryRefused(job_id, "parent_ended", why)
