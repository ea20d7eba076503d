"""Wake-ups: each committed change of a job wakes the loops and the requests that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from server.domain.jobs import Job
from shared.wire import JobState


class Wakeups:
    """``ports.Watch``, and the wake-ups of the loops."""

    def __init__(self) -> None:
        self.sender = asyncio.Event()
        self.canceller = asyncio.Event()
        self.getter = asyncio.Event()
        self.cleaner = asyncio.Event()
        self._watchers: dict[int, dict[asyncio.Event, bool]] = {}
        """Job -> who waits for it, and whether only for its end."""
        self._closing = False

    def changed(self, job: Job) -> None:
        if job.state is JobState.QUEUED or job.ended:
            self.sender.set()  # work, or a free slot
        if job.cancel_requested_at is not None and not job.ended:
            self.canceller.set()
        for watcher, end_only in self._watchers.get(job.id, {}).items():
            if job.ended or not end_only:
                watcher.set()

    def agent_changed(self) -> None:
        """An agent can be talked to, or accepts work, again."""
        self.sender.set()
        self.canceller.set()

    @contextmanager
    def of(self, job_id: int, *, end_only: bool = False) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        if self._closing:
            event.set()
        watchers = self._watchers.setdefault(job_id, {})
        watchers[event] = end_only
        try:
            yield event
        finally:
            del watchers[event]
            if not watchers:
                self._watchers.pop(job_id, None)

    @property
    def closing(self) -> bool:
        """The server is stopping: nobody should wait for anything."""
        return self._closing

    def close(self) -> None:
        """Wake everybody who waits, now and later."""
        self._closing = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.set()
