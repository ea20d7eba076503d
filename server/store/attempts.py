"""The attempts: each written with the moves of its job."""

from __future__ import annotations

from typing import Any, Final

from server.domain import states
from server.domain.errors import NoSuchAttempt
from server.domain.jobs import Attempt, Job, Move, Result
from server.store import bundles, records
from server.store.statements import changed
from server.store.statistics import count_result
from shared.ids import AttemptKey
from shared.sql import Tx
from shared.wire import JobState

_FROM_THE_JOB: Final = ("agent", "payload_id", "submitted_at", "started_at")
"""Fields that a move sets in both rows."""


def record_attempt(tx: Tx, job: Job, move: Move) -> None:
    """Write what a move that was just made says about the job's current attempt."""
    key = {"job_id": job.id, "number": job.attempt}
    if not states.HOLDS_SLOT & {move.before, move.to, *(step.to for step in move.through)}:
        return  # it waited, or had ended
    deferred = move.changes.get("deferred")
    if deferred is False or (job.deferred and not deferred):
        return  # a parent without an attempt under way
    if move.before is JobState.QUEUED:  # a claim, or an attempt that was given up and is back
        tx.rows(
            """
            INSERT INTO attempts (job_id, number, state, agent, agent_id, claimed_at, message)
            VALUES (:job_id, :number, :state, :agent, (
                SELECT id FROM agents WHERE name = :agent AND state != 'retired'
            ), :at, :message)
            ON CONFLICT (job_id, number) DO NOTHING
            """,
            key
            | {
                "state": job.state,
                "agent": job.agent or "",
                "at": move.at,
                "message": move.message,
            },
        )
    if job.attempt != move.attempt:
        return
    if move.before is JobState.PROCESSING and job.state is JobState.QUEUED and not move.reason:
        # No agent took it. Nothing happened that its history does not say.
        tx.rows("DELETE FROM attempts WHERE job_id = :job_id AND number = :number", key)
        return
    known = {name: move.changes[name] for name in _FROM_THE_JOB if move.changes.get(name)}
    values: dict[str, Any] = {"state": job.state, "message": move.message, "reason": move.reason}
    values |= records.columns(known | dict(move.facts))
    if job.state not in states.HOLDS_SLOT:
        values["ended_at"] = move.at
    if job.state is JobState.QUEUED:
        values["state"] = JobState.FAILED
    elif deferred:
        values |= {"state": JobState.COMPLETED, "ended_at": move.at}
    setting = ", ".join(f"{name} = :{name}" for name in values)
    tx.rows(
        f"UPDATE attempts SET {setting} WHERE job_id = :job_id AND number = :number",  # noqa: S608 - names come from Move
        values | key,
    )
    if (result := move.facts.get("result")) is not None:
        bundles.keep(tx, result)


def attach_result(tx: Tx, key: AttemptKey, result: Result) -> bool:
    """Add a result that came after its attempt had ended; False: it has one, or its job is gone."""
    columns = records.columns({"result": result})
    setting = ", ".join(f"{name} = :{name}" for name in columns)
    values = columns | {"job_id": key.job_id, "number": key.attempt}
    added = tx.rows(
        f"""
        UPDATE attempts SET {setting}
        WHERE job_id = :job_id AND number = :number AND result_file IS NULL
        AND ended_at IS NOT NULL
        AND EXISTS (SELECT 1 FROM jobs WHERE id = :job_id AND state != 'Cleaned')
        RETURNING ended_at
        """,  # noqa: S608 - no user input
        values,
    )
    if not added:
        return False
    bundles.keep(tx, result)
    tx.rows("UPDATE jobs SET results_size = results_size + :result_size WHERE id = :job_id", values)
    tx.rows(
        f"""
        UPDATE jobs SET {setting} WHERE id = :job_id AND attempt = :number AND ended_at IS NOT NULL
        """,  # noqa: S608 - no user input
        values,
    )
    job = records.job(tx.rows("SELECT * FROM jobs WHERE id = :job_id", values)[0])
    count_result(tx, job, added[0]["ended_at"], result.size)
    changed(tx, job)
    return True


def joined_sha256(tx: Tx, key: AttemptKey, result: Result) -> str | None:
    """Digest of the ZIP of a result and what it refers to; None: not known yet."""
    rows = tx.rows(
        "SELECT joined_sha256 FROM attempts WHERE job_id = :job_id AND number = :number"
        " AND result_file = :file",
        {"job_id": key.job_id, "number": key.attempt, "file": result.file},
    )
    return rows[0]["joined_sha256"] if rows else None


def keep_joined(tx: Tx, key: AttemptKey, result: Result, sha256: str) -> None:
    """Remember it: the whole was sent."""
    tx.rows(
        "UPDATE attempts SET joined_sha256 = :sha256 WHERE job_id = :job_id AND number = :number"
        " AND result_file = :file",
        {"job_id": key.job_id, "number": key.attempt, "file": result.file, "sha256": sha256},
    )


def newest(tx: Tx, job_id: int, most: int) -> list[Attempt]:
    """The newest of the attempts that an agent took, the first one first."""
    rows = tx.rows(
        """
        SELECT * FROM attempts WHERE job_id = :job_id ORDER BY number DESC LIMIT :most
        """,
        {"job_id": job_id, "most": most},
    )
    return [records.attempt(row) for row in reversed(rows)]


def get(tx: Tx, key: AttemptKey) -> Attempt:
    """Raises NoSuchAttempt."""
    rows = tx.rows(  # the Getter asks, too, and must not wait for lists
        "SELECT * FROM attempts WHERE job_id = :job_id AND number = :number",
        {"job_id": key.job_id, "number": key.attempt},
    )
    if not rows:
        raise NoSuchAttempt(key.job_id, key.attempt)
    return records.attempt(rows[0])
