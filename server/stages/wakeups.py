"""Wake-ups: each committed change of a job wakes the loops and the requests that wait for it."""

from __future__ import annotations

import asyncio
from typing import Final

from server.domain.jobs import Hold, Job
from shared.clock import Clock, RealClock
from shared.wakeups import Wakeups
from shared.wire import JobState

_MAX_RECENT: Final = 1_000
"""Jobs that are known without a look into the store."""
_RECENT_FOR_S: Final = 1.0
"""Not for longer: what it says while it runs is not in it."""


class JobWakeups(Wakeups):
    """Of the loops, and of requests that wait for a job.

    Args:
        clock: None: the machine's.

    Attributes:
        calls: how often there might be a job for a slot, or a slot for a job.
        settings_changed: of services or agents, since the Sender looked last.
        events: of requests that wait for events of jobs.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or RealClock()
        self.sender = asyncio.Event()
        self.canceller = asyncio.Event()
        self.cleaner = asyncio.Event()
        self.dependencies = asyncio.Event()
        self.schedules = asyncio.Event()
        self.batches = asyncio.Event()
        self.webhooks = asyncio.Event()
        self.calls, self.settings_changed = 0, False
        self.events = Wakeups()
        self._recent: dict[int, tuple[Job, float]] = {}

    def changed(self, job: Job) -> None:
        """To be called after each commit with a move."""
        self._remember(job)
        if job.state is JobState.QUEUED or job.deferred or job.ended:
            self.send()  # work, or a free slot
        if (job.ended and job.state is not JobState.COMPLETED) or job.hold is Hold.DEPENDENCY:
            self.dependencies.set()
        if job.cancel_requested_at is not None and not job.ended:
            self.canceller.set()
        if job.deferred or (job.parent_id is not None and job.ended):
            self.batches.set()
        if job.delete_requested_at is not None and job.ended:
            self.cleaner.set()
        if job.ended and job.callback_url is not None:
            self.webhooks.set()
        self.notify(job.id, ended=job.ended, row=job)
        self.noted(job.id)

    def _remember(self, job: Job) -> None:
        self._recent.pop(job.id, None)
        # Of parents and children, changes are also reported some time after they were read.
        if not job.ended and not job.deferred and job.parent_id is None:
            self._recent[job.id] = job, self._clock.monotonic()
            if len(self._recent) > _MAX_RECENT:
                del self._recent[next(iter(self._recent))]

    def recent_job(self, job_id: int) -> Job | None:
        """The job as its last move left it, if it had not ended then; only of those that moved
        a moment ago. What it said since then is not in it.
        """
        job, at = self._recent.get(job_id, (None, 0.0))
        return job if self._clock.monotonic() - at < _RECENT_FOR_S else None

    def send(self) -> None:
        """There may be a free slot, or a job for one."""
        self.calls += 1
        self.sender.set()

    def noted(self, job_id: int) -> None:
        """There are new events of the job."""
        self.events.notify(job_id, ended=False)

    def close(self) -> None:
        super().close()
        self.events.close()

    def services_changed(self) -> None:
        """The settings of services, or whether they are paused, have changed."""
        self.settings_changed = True
        self.sender.set()

    def agent_changed(self) -> None:
        """An agent can be talked to, or accepts work, again."""
        self.services_changed()
        self.canceller.set()
