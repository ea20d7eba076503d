"""What follows a change of a job: it is counted, whoever listens hears of it, its end is logged.

Jobs that wait or hold slots are counted once, and then as they change. What is kept belongs to the
database that is written to. Its thread changes it, within the transactions that change the jobs, so
a claim counts none of them. All others only copy parts of it or look at a number, which takes one
step: they may see a change just before it is durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

import structlog

from server.domain import states
from server.domain.jobs import Job, Move
from server.domain.statistics import Over, over
from server.store import statistics
from shared.sql import Tx
from shared.sqlite.database import Database
from shared.wire import JobState

log = structlog.get_logger()
K = TypeVar("K")
HELD: Final = "deferred = 0 AND state IN ('Processing', 'Submitted', 'Running', 'Unknown')"
"""HOLDS_SLOT, in the words of the index ``jobs_held``."""
TOTALS: Final = "totals"
"""In a transaction's memory."""
WAITS_SINCE: Final = "coalesce(waits_since, queued_at)"
_SLOTS: Final = f"""
    SELECT id, attempt, service, user_id, coalesce(agent, ''), state, array_index FROM jobs
    WHERE {HELD}
"""  # noqa: S608 - no user input
_QUEUED: Final = """
    SELECT service, user_id, count(*) FROM jobs WHERE state = 'Queued' GROUP BY service, user_id
"""


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


async def totals_of(database: Database) -> Totals:
    """The counts of now, to be read only, each in one step. Raises DatabaseUnavailable."""
    known: Totals | None = database.memory.get(TOTALS)
    return await database.write(all_of) if known is None else known


@dataclass(frozen=True, slots=True)
class Listener:
    """Hears of jobs after each commit, in their order.

    Attributes:
        on_change: called with a job that was changed.
        on_events: called with the id of a job of which other events were written.
        on_move: called with each move.
    """

    on_change: Callable[[Job], None]
    on_events: Callable[[int], None] = lambda _: None
    on_move: Callable[[Move, Job], None] = lambda *_: None


def changed(tx: Tx, job: Job) -> None:
    """Let the listener hear of it, after the commit, and count the slot that it holds."""
    if (totals := tx.memory.get(TOTALS)) is not None:
        totals.put(job)
    tx.after(partial(tx.listener.on_change, job))


def queued(tx: Tx, service: str, user_id: str, by: int) -> None:
    """Count so many more jobs in the queue."""
    if (totals := tx.memory.get(TOTALS)) is not None:
        totals.queue(service, user_id, by)


def moved(tx: Tx, move: Move, job: Job) -> None:
    """As :func:`changed`, of a move. What is over by it is counted for its user, and written in the
    log, here and nowhere else.
    """
    if (took := over(move, job)) is not None:
        statistics.count_over(tx, took, move.at, job)
        tx.after(partial(_log_over, took, move, job))
    tx.after(partial(tx.listener.on_move, move, job))
    if (by := (job.state is JobState.QUEUED) - (move.before is JobState.QUEUED)) != 0:
        queued(tx, job.service, job.user_id, by)
    changed(tx, job)


def noted(tx: Tx, job_id: int) -> None:
    """As :func:`changed`, of events that changed nothing else of the job."""
    tx.after(partial(tx.listener.on_events, job_id))


def _log_over(took: Over, move: Move, job: Job) -> None:
    """A line for each job that ended, and for each attempt that another one or children follow:
    enough to charge for it, and to know why.
    """
    again = "job.requeued" if job.state is JobState.QUEUED else "job.deferred"
    log.info(
        "job.ended" if job.ended else again,
        job_id=job.id,
        user_id=job.user_id,
        service=job.service,
        attempt=move.attempt,
        agent=job.agent or (move.seen and move.seen.agent),
        state=job.state,
        reason=move.reason,
        message=move.message,
        exit_code=move.facts.get("exit_code"),
        run_s=took.run_s,
        wait_s=round(took.wait_s, 3),
        result_bytes=took.result_bytes,
    )
