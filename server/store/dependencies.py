"""Which job waits for which, in the transactions that change it.

A dependency is ``waiting`` until the job that is waited for ends: ``met`` if that Completed, else
``failed``. That is written with the move that ends it, so it holds whatever becomes of that job
later: retention may remove its files, and a retry by hand may queue it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from server.domain import states
from server.domain.access import Visible
from server.domain.ending import BrokenDependency
from server.domain.errors import BadField, invalid
from server.domain.jobs import Hold, Job, Move, NewJob
from server.store import records
from server.store.records import insert
from shared.sql import AMONG, Tx, among
from shared.wire import JobState

_STATE: Final = """
    CASE WHEN prior.id IS NULL THEN 'failed'
         WHEN prior.state = 'Completed' THEN 'met'
         WHEN prior.state = 'Cleaned' AND EXISTS (
             SELECT 1 FROM events WHERE events.job_id = prior.id AND events.state = 'Cleaned'
             AND events.before = 'Completed'
         ) THEN 'met'
         WHEN prior.ended_at IS NOT NULL THEN 'failed' ELSE 'waiting' END
"""
"""Of a dependency on the job ``prior``, as that is now."""
_HELD: Final = "jobs.state = 'Queued' AND jobs.hold = 'dependency'"
"""Jobs that wait for others, in the words of the index ``jobs_waiting``."""
NEEDED: Final = """
    EXISTS (SELECT 1 FROM dependencies JOIN jobs AS waiting ON waiting.id = dependencies.job_id
            WHERE dependencies.on_id = jobs.id AND waiting.ended_at IS NULL)
"""
"""Of a job: another that has not ended depends on it."""
RESULT_NEEDED: Final = NEEDED.replace("WHERE", "WHERE dependencies.inputs = 1 AND", 1)
"""Of a job: another that has not ended gets its result files."""
AWAITED: Final = """
    EXISTS (SELECT 1 FROM dependencies
            WHERE dependencies.on_id = jobs.id AND dependencies.state = 'waiting')
"""
"""Of a job: a dependency on it is not settled."""
_SHOWN: Final = 100
_AT_ONCE: Final = 100


def check(tx: Tx, new: NewJob, visible: Visible) -> dict[int, str]:
    """The jobs that a new one depends on, and what each dependency is now. Raises BadField.
    ``visible``: to whom it depends on; of what is not there, another user's or not visible the same
    is said.
    """
    jobs = records.several(tx, {*new.after, *new.inputs_from})
    for field, ids in (("after", new.after), ("inputs_from", new.inputs_from)):
        for job_id in ids:
            job = jobs.get(job_id)
            if (
                job is None
                or job.delete_requested_at is not None
                or job.user_id != new.user_id
                or not visible.has(job)
            ):
                raise invalid(field, f"job {job_id} does not exist")
            if job.parent_id is not None:
                parent = f"job {job_id} is a child of job {job.parent_id}: name that"
                raise invalid(field, parent)
            if field == "inputs_from" and job.state is JobState.CLEANED:
                why = f"Invalid inputs_from: the result of job {job_id} is gone, it has expired"
                raise BadField("inputs_from", "result_gone", why)
    sql = f"SELECT id, {_STATE} AS state FROM jobs AS prior WHERE id {AMONG}"  # noqa: S608
    return {row["id"]: row["state"] for row in tx.rows(sql, among(jobs))}


def add(tx: Tx, job_id: int, new: NewJob, found: Mapping[int, str]) -> None:
    for on_id, state in found.items():
        inputs = int(on_id in new.inputs_from)
        values = {"job_id": job_id, "on_id": on_id, "inputs": inputs, "state": state}
        insert(tx, "dependencies", values)


def follow_move(tx: Tx, job: Job, move: Move, *, awaited: bool) -> Job:
    """What a move that was just made means for jobs that depend on the job, and for itself.

    The end of a job settles the dependencies on it; those that wait for nothing any more may be
    claimed from now on. A job that is retried by hand looks again at what it depends on.

    Args:
        awaited: as :data:`AWAITED`.

    Returns:
        The job, which may be held back now.
    """
    if job.ended and move.before not in states.ENDED:
        if awaited:
            settle(tx, job.id, job.state is JobState.COMPLETED, move.at)
    elif move.before in states.ENDED and job.state is JobState.QUEUED:
        return _look_again(tx, job)
    return job


def settle(tx: Tx, on_id: int, met: bool, at: int) -> None:
    """The job on which others depend has ended, or is taken out of a copy."""
    rows = tx.rows(
        """
        UPDATE dependencies SET state = :state WHERE on_id = :on_id AND state = 'waiting'
        RETURNING job_id
        """,
        {"on_id": on_id, "state": "met" if met else "failed"},
    )
    if met and rows:
        _release(tx, [row["job_id"] for row in rows], at)


def _release(tx: Tx, job_ids: Sequence[int], at: int) -> None:
    """Those whose dependencies are all met wait in the queue from now on."""
    tx.rows(
        f"""
        UPDATE jobs SET hold = NULL,
            waits_since = CASE WHEN not_before > :at THEN not_before ELSE :at END
        WHERE {_HELD} AND id {AMONG} AND NOT EXISTS (
            SELECT 1 FROM dependencies
            WHERE dependencies.job_id = jobs.id AND dependencies.state != 'met'
        )
        """,  # noqa: S608 - no user input
        among(job_ids) | {"at": at},
    )


def _look_again(tx: Tx, job: Job) -> Job:
    tx.rows(
        f"""
        UPDATE dependencies SET state = coalesce(
            (SELECT {_STATE} FROM jobs AS prior WHERE prior.id = dependencies.on_id), 'failed'
        ) WHERE job_id = :id AND state = 'failed'
        """,  # noqa: S608 - no user input
        {"id": job.id},
    )
    open_ones = tx.rows(
        "SELECT 1 FROM dependencies WHERE job_id = :id AND state != 'met' LIMIT 1", {"id": job.id}
    )
    if not open_ones and job.hold is not Hold.DEPENDENCY:
        return job
    hold = Hold.DEPENDENCY if open_ones else None
    tx.rows("UPDATE jobs SET hold = :hold WHERE id = :id", {"id": job.id, "hold": hold})
    return replace(job, hold=hold)


def waiting_for(tx: Tx, job_id: int) -> list[int]:
    """The first jobs that have not ended and depend on the job."""
    rows = tx.rows(
        f"""
        SELECT job_id FROM dependencies JOIN jobs ON jobs.id = job_id
        WHERE on_id = :id AND jobs.ended_at IS NULL ORDER BY job_id LIMIT {_SHOWN}
        """,  # noqa: S608 - no user input
        {"id": job_id},
    )
    return [row["job_id"] for row in rows]


def unmet(tx: Tx, job_id: int) -> list[int]:
    """The jobs that it depends on and that have not completed; the first hundred."""
    rows = tx.rows(
        f"""
        SELECT on_id FROM dependencies WHERE job_id = :id AND state != 'met'
        ORDER BY on_id LIMIT {_SHOWN}
        """,  # noqa: S608 - no user input
        {"id": job_id},
    )
    return [row["on_id"] for row in rows]


def broken(tx: Tx) -> list[BrokenDependency]:
    """Queued jobs that depend on one that did not complete; some hundreds at a time."""
    rows = tx.rows(
        f"""
        SELECT jobs.*, min(dependencies.on_id) AS on_id FROM dependencies
        JOIN jobs ON jobs.id = dependencies.job_id
        WHERE dependencies.state = 'failed' AND {_HELD}
        GROUP BY jobs.id ORDER BY jobs.id LIMIT {_AT_ONCE}
        """  # noqa: S608 - no user input
    )
    priors = records.several(tx, {row["on_id"] for row in rows})
    return [
        BrokenDependency(records.job(row), row["on_id"], priors.get(row["on_id"])) for row in rows
    ]
