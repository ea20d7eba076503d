"""Which jobs hold slots: read once, then counted as jobs change, so a claim counts none of them.

What is kept belongs to the database that is written to, and only its thread uses it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final, NamedTuple

from server.domain import states
from server.domain.jobs import Job
from server.store.statements import HELD, SLOTS
from shared.sql import Tx

_ALL: Final = f"""
    SELECT id, attempt, service, user_id, agent, array_index FROM jobs WHERE {HELD}
"""  # noqa: S608 - no user input


class Holder(NamedTuple):
    """A job that holds a slot."""

    attempt: int
    service: str
    user_id: str
    agent: str
    array_index: int | None


class Slots:
    """Counts of jobs that hold a slot.

    Attributes:
        users: service -> user -> jobs.
        agents: agent -> jobs.
        runs: agent and service -> jobs.
        tasks: agent and service -> those that are tasks of an array.
    """

    def __init__(self) -> None:
        self.holders: dict[int, Holder] = {}
        self.users: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.agents = Counter[str]()
        self.runs, self.tasks = Counter[tuple[str, str]](), Counter[tuple[str, str]]()

    def add(self, job_id: int, holder: Holder) -> None:
        self.holders[job_id] = holder
        self._count(holder, 1)

    def put(self, job: Job) -> None:
        """The job as it is now."""
        if (was := self.holders.pop(job.id, None)) is not None:
            self._count(was, -1)
        if job.state in states.HOLDS_SLOT and not job.deferred:
            agent, index = job.agent or "", job.array_index
            self.add(job.id, Holder(job.attempt, job.service, job.user_id, agent, index))

    def _count(self, of: Holder, by: int) -> None:
        users = self.users[of.service]
        users[of.user_id] += by
        if not users[of.user_id]:
            del users[of.user_id]
        self.agents[of.agent] += by
        self.runs[of.agent, of.service] += by
        if of.array_index is not None:
            self.tasks[of.agent, of.service] += by


def all_of(tx: Tx) -> Slots:
    """The slots that are held now, in a transaction that writes."""
    slots: Slots | None = tx.memory.get(SLOTS)
    if slots is None:
        slots = tx.memory[SLOTS] = Slots()
        for row in tx.rows(_ALL):
            job_id, attempt, service, user_id, agent, index = row
            slots.add(job_id, Holder(attempt, service, user_id, agent or "", index))
    return slots
