"""Waiting for changes."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Protocol

from server.domain.jobs import Job
from shared.wakeups import Change


class Watch(Protocol):
    """Waiting for a job to change."""

    def changed(self, job: Job) -> None:
        """Called after each commit."""
        ...

    def recent_job(self, job_id: int) -> Job | None:
        """The job as its last move left it, if it had not ended then; only of those that moved
        a moment ago. What it said since then is not in it.
        """
        ...

    def of(self, job_id: int, *, end_only: bool = False) -> AbstractContextManager[Change]:
        """An event that is set at each change of the job, or its end; and when the server stops.
        Its row is the job as its last move left it; to be used only if it has ended: what an open
        job said since then is not in it.
        """
        ...

    def events_of(self, job_id: int | None) -> AbstractContextManager[asyncio.Event]:
        """An event that is set when something happened to the job (None: to any); and when the
        server stops.
        """
        ...

    @property
    def events_version(self) -> int:
        """Another number after each commit with events."""
        ...

    @property
    def closing(self) -> bool:
        """The server is stopping: nobody should wait for anything."""
        ...
