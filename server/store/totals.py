"""Jobs that wait or hold slots, counted: read once, then kept as jobs change.

What is kept belongs to the database that is written to. Its thread changes it, within the
transactions that change the jobs, so a claim counts none of them. All others only copy
parts of it or look at a number, which takes one step: they may see a change just before it is
durable.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple, TypeVar

from server.domain import states
from server.domain.jobs import Job
from server.store.statements import HELD, TOTALS
from shared.sql import Tx
from shared.sqlite.database import Database
from shared.wire import JobState

_SLOTS: Final = f"""
    SELECT id, attempt, service, user_id, coalesce(agent, ''), state, array_index FROM jobs
    WHERE {HELD}
"""  # noqa: S608 - no user input
_QUEUED: Final = """
    SELECT service, user_id, count(*) FROM jobs WHERE state = 'Queued' GROUP BY service, user_id
"""
K = TypeVar("K")


class Holder(NamedTuple):
    """A job that holds a slot."""

    attempt: int
    service: str
    user_id: str
    agent: str
    state: JobState
    array_index: int | None


class Totals:
    """Counts of jobs that wait, and of those that hold a slot.

    Attributes:
        queued: service and user -> jobs in the queue, whatever holds them back.
        services: service -> jobs in the queue.
        slots: service, user, agent and state -> jobs that hold a slot; so are the others.
        users: service -> user -> jobs.
        agents: agent -> jobs.
        running: agent -> those that are Running.
        runs: agent and service -> jobs.
        tasks: agent and service -> those that are tasks of an array.
    """

    def __init__(self) -> None:
        self.holders: dict[int, Holder] = {}
        self.queued, self.services = Counter[tuple[str, str]](), Counter[str]()
        self.slots = Counter[tuple[str, str, str, JobState]]()
        self.users: dict[str, Counter[str]] = {}
        self.agents, self.running = Counter[str](), Counter[str]()
        self.runs, self.tasks = Counter[tuple[str, str]](), Counter[tuple[str, str]]()

    def add(self, job_id: int, holder: Holder) -> None:
        self.holders[job_id] = holder
        self._count(holder, 1)

    def put(self, job: Job) -> None:
        if (was := self.holders.pop(job.id, None)) is not None:
            self._count(was, -1)
        if job.state in states.HOLDS_SLOT and not job.deferred:
            of, agent = (job.attempt, job.service, job.user_id), job.agent or ""
            self.add(job.id, Holder(*of, agent, job.state, job.array_index))

    def queue(self, service: str, user_id: str, by: int) -> None:
        _add(self.queued, (service, user_id), by)
        _add(self.services, service, by)

    def _count(self, of: Holder, by: int) -> None:
        _add(self.slots, (of.service, of.user_id, of.agent, of.state), by)
        users = self.users.setdefault(of.service, Counter())
        _add(users, of.user_id, by)
        if not users:
            del self.users[of.service]
        _add(self.agents, of.agent, by)
        if of.state is JobState.RUNNING:
            _add(self.running, of.agent, by)
        _add(self.runs, (of.agent, of.service), by)
        if of.array_index is not None:
            _add(self.tasks, (of.agent, of.service), by)


def _add(counts: Counter[K], key: K, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]


def all_of(tx: Tx) -> Totals:
    """The counts of now, in a transaction that writes."""
    totals: Totals | None = tx.memory.get(TOTALS)
    if totals is None:
        totals = Totals()
        for job_id, attempt, service, user_id, agent, state, index in tx.rows(_SLOTS):
            holder = Holder(attempt, service, user_id, agent, JobState(state), index)
            totals.add(job_id, holder)
        for service, user_id, jobs in tx.rows(_QUEUED):
            totals.queue(service, user_id, jobs)
        tx.memory[TOTALS] = totals
    return totals


async def now(database: Database) -> Totals:
    """The counts of now, to be read only, each in one step. Raises DatabaseUnavailable."""
    known: Totals | None = database.memory.get(TOTALS)
    return await database.write(all_of) if known is None else known
