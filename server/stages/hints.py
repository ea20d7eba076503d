"""What the commits of this process say of jobs that have not ended, in memory.

These are hints: jobs are moved meanwhile, and a restart forgets all of them. So
what they lead to is a conditional write, and where they say nothing, the store is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from server.domain import states
from server.domain.choose import Candidate
from server.domain.jobs import Job
from server.store import queue
from shared.clock import Micros
from shared.ids import AttemptKey
from shared.sql import Database
from shared.wire import JobState

_MOST_QUEUED: Final = 1_000
"""Jobs of a service that are known one by one."""


class Hints:
    """Hints, if :meth:`changed` is called with each change, in the order of the commits.

    Attributes:
        unsure: something has changed that no commit says: the store is to be asked at once.
    """

    def __init__(self) -> None:
        self._held: dict[int, Job] = {}
        """Those that hold a slot, as they were left."""
        self._slots = Counter[str | None]()
        """agent -> how many of them it has"""
        self._queued: dict[str, dict[int, int]] = {}
        """service -> its jobs that may be claimed, and the look before which each was seen"""
        self._delayed: dict[int, Micros] = {}
        """Queued jobs that may be claimed later, and from when on."""
        self._may_have: set[str] = set()
        """Services that may have other queued jobs."""
        self._looks = 0
        self.unsure = False

    def changed(self, job: Job) -> None:
        """Note how a commit left the job."""
        if (was := self._held.pop(job.id, None)) is not None:
            self._slots[was.agent] -= 1
        if job.state in states.HOLDS_SLOT and not job.deferred:
            self._held[job.id] = job
            self._slots[job.agent] += 1
        self._delayed.pop(job.id, None)
        queued = self._queued.setdefault(job.service, {})
        if job.state is not JobState.QUEUED:
            queued.pop(job.id, None)
        elif not job.not_before and job.hold is None and len(queued) < _MOST_QUEUED:
            queued[job.id] = self._looks
        else:  # it may be claimed later, which no commit says
            self._may_have.add(job.service)
            if job.not_before and len(self._delayed) < _MOST_QUEUED:
                self._delayed[job.id] = job.not_before
        if job.deferred:
            self._may_have.add(job.service)  # it has children

    def held(self, job_id: int) -> Job | None:
        """The job, if it held a slot when it was seen last."""
        return self._held.get(job_id)

    def queued(self) -> set[str]:
        """Services that may have jobs to be claimed."""
        return self._may_have | {service for service, jobs in self._queued.items() if jobs}

    def take_due(self, now: Micros) -> bool:
        """Whether jobs have come due since this was asked last."""
        due = [job_id for job_id, not_before in self._delayed.items() if not_before <= now]
        for job_id in due:
            del self._delayed[job_id]
        return bool(due)

    def next_due(self) -> Micros | None:
        """When the first of the delayed jobs comes due, as far as is known."""
        return min(self._delayed.values(), default=None)

    def has_room(self, candidates: Iterable[Candidate], ended: Collection[AttemptKey]) -> bool:
        """Whether one of the agents may have a free slot.

        Args:
            ended: attempts that need none any more.
        """
        over = Counter[str | None]()
        for key in ended:
            if (job := self._held.get(key.job_id)) is not None and job.key == key:
                over[job.agent] += 1
        return any(one.takes(self._slots[one.name] - over[one.name]) for one in candidates)

    async def look(self, database: Database) -> None:
        """Ask the store which services have queued jobs."""
        self._looks += 1
        found = set(await database.read(queue.queued_services))
        self._may_have = found
        for service in self._queued.keys() - found:
            # Those that came meanwhile are not in what was found.
            seen = self._queued[service].items()
            self._queued[service] = {one: look for one, look in seen if look >= self._looks}
