"""What the modules of the store have in common: records as rows and back, what follows a change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar

import structlog

from server.domain.jobs import Job, Move
from server.domain.statistics import Over, over
from server.store import statistics
from shared.sql import Row, Tx
from shared.wire import JobState

Record = TypeVar("Record")


def reader(
    kind: Callable[..., Record],
    read: Mapping[str, Callable[[Any], Any]],
    beside: Mapping[str, Callable[[Mapping[str, Any]], Any]] = MappingProxyType({}),
) -> Callable[[Row], Record]:
    """What makes a record of a row.

    Args:
        read: field -> what the column's value means, where that is not NULL.
        beside: field that has no column of its name -> what makes it of the row.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = [one.name for one in fields if one.name not in beside]
    values_of, meanings = itemgetter(*names), [(name, read[name]) for name in names if name in read]

    def record(row: Row) -> Record:
        # Asked for one name, SQLite's row compares it with the names of all columns before.
        named = dict(zip(row.keys(), row, strict=True))
        values = dict(zip(names, values_of(named), strict=True))
        for name, means in meanings:
            if values[name] is not None:
                values[name] = means(values[name])
        for name, make in beside.items():
            values[name] = make(named)
        return kind(**values)

    return record


def insert(tx: Tx, table: str, values: Mapping[str, Any], more: str = "") -> Sequence[Row]:
    """Add a row; ``more`` stands behind the values."""
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    return tx.rows(f"INSERT INTO {table} ({names}) VALUES ({marks}) {more}", values)  # noqa: S608


log = structlog.get_logger()

HELD: Final = "deferred = 0 AND state IN ('Processing', 'Submitted', 'Running', 'Unknown')"
"""HOLDS_SLOT, in the words of the index ``jobs_held``."""
TOTALS: Final = "totals"
"""In a transaction's memory, see :mod:`server.store.totals`."""

WAITS_SINCE: Final = "coalesce(waits_since, queued_at)"


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
