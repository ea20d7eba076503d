"""One conditional write with its event, which every move of a job is made of."""

from __future__ import annotations

from typing import Any, Final

from server.domain.errors import NoSuchJob
from server.domain.jobs import Job, Move
from server.store import rows
from shared.clock import Micros
from shared.sqlite.database import Database
from shared.sqlite.transactions import Transaction
from shared.wire import JobState

_EVENT: Final = """
    INSERT INTO events (job_id, at, attempt, before, state, reason, message)
    VALUES (:job_id, :at, :attempt, :before, :state, :reason, :message)
"""
_FOLD: Final = """
    WITH same AS (
        SELECT max(seq) AS seq FROM events WHERE job_id = :job_id AND state = :state
        AND before = :before AND reason IS NULL AND message = :message
    )
    DELETE FROM events WHERE job_id = :job_id AND seq IN (
        SELECT seq FROM same
        UNION ALL
        SELECT min(events.seq) FROM events, same
        WHERE events.job_id = :job_id AND events.seq > same.seq
    )
"""
"""A send that comes to nothing again as it did before: that one's two events give way, so that the
history of a job that nobody takes does not grow for ever, and is still without a gap."""


async def make_move(
    tx: Transaction, move: Move, also: str = "", only_if: str = "1 = 1"
) -> Job | None:
    """The conditional write of one move, and its event."""
    values: dict[str, Any] = {"state": move.to, "message": move.message, "reason": move.reason}
    values |= rows.columns(move.changes)
    setting = ", ".join([f"{name} = :{name}" for name in values] + ([also] if also else []))
    found = await tx.rows(
        f"""
        UPDATE jobs SET {setting}
        WHERE id = :_id AND state = :_before AND attempt = :_attempt AND {only_if}
        RETURNING *
        """,  # noqa: S608 - names come from Move, values are parameters
        values | {"_id": move.job_id, "_before": move.before, "_attempt": move.attempt},
    )
    if not found:
        return None
    job = rows.job(found[0])
    await append_event(tx, job, move.before, move.at, move.message)
    return job


async def append_event(
    tx: Transaction, job: Job, before: JobState | None, at: Micros, message: str
) -> None:
    values = {
        "job_id": job.id,
        "at": at,
        "attempt": job.attempt,
        "before": before,
        "state": job.state,
        "reason": job.reason,
        "message": message,
    }
    if before is JobState.PROCESSING and job.state is JobState.QUEUED and job.reason is None:
        await tx.rows(_FOLD, values)
    await tx.rows(_EVENT, values)


async def get_job(source: Database | Transaction, job_id: int) -> Job:
    found = await source.rows("SELECT * FROM jobs WHERE id = :id", {"id": job_id})
    if not found:
        raise NoSuchJob(job_id)
    return rows.job(found[0])
