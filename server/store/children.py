"""What one statement does to many children of a batch, inside a transaction of the caller's.

It keeps the promises of a move: each change has its condition and its event, and is counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from server.domain import ending
from server.domain.batch import Batch, NewChild
from server.domain.jobs import FIRST_EVENT, Hold, Job, Move
from server.domain.live import NewEvent
from server.store import records
from server.store.events import append, values_of
from server.store.statements import changed, moved, queued
from shared.clock import Micros
from shared.ids import AttemptKey
from shared.sql import AMONG, Tx, among
from shared.wire import JobState

COUNTED: Final[Mapping[JobState, str]] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}
"""State of a child -> the column that counts it. Children that were cleaned stay counted."""
PARENT_GOES_ON: Final = """
    NOT EXISTS (
        SELECT 1 FROM jobs AS parent WHERE parent.id = jobs.parent_id
        AND parent.cancel_requested_at IS NOT NULL
    )
"""
"""Of a job that is claimed: if it is a child, its parent is not to be cancelled."""
PARENT_WAITS: Final = """
    (parent_id IS NULL OR EXISTS (
        SELECT 1 FROM jobs AS parent WHERE parent.id = jobs.parent_id AND parent.state = 'Running'
        AND parent.deferred = 1 AND parent.cancel_requested_at IS NULL
    ))
"""
"""Of a job that is retried: if it is a child, its parent has not ended and is not cancelled."""

_AT_ONCE: Final = 500
"""Children that one transaction cancels: uploads, claims and ends get in between."""
_COPIED: Final = (
    "user_id, service, tags, limits, timeout_s, submitted_by, retry, queue_timeout_s, "
    "heartbeat_timeout_s, expires_after_s, priority, outputs, result_files, meta"
)
"""What a child has from its parent."""


def cancel_children(tx: Tx, parent_id: int, at: Micros, message: str) -> bool:
    """Cancel some of what has not ended: queued children at once, the others are asked for. False:
    there are no more.
    """
    open_ones = tx.rows(
        """
        SELECT id, state FROM jobs WHERE parent_id = :parent AND ended_at IS NULL
        AND cancel_requested_at IS NULL ORDER BY id LIMIT :most
        """,
        {"parent": parent_id, "most": _AT_ONCE},
    )
    values, event = {"at": at, "message": message}, NewEvent("job.cancelled", message)
    cancelled = records.jobs(
        tx,
        f"""
        UPDATE jobs SET state = 'Cancelled', message = :message, reason = NULL, ended_at = :at,
            cancel_requested_at = :at
        WHERE id {AMONG} RETURNING *
        """,  # noqa: S608 - no user input
        values | among([row["id"] for row in open_ones if row["state"] == "Queued"]),
    )
    tx.rows(
        "UPDATE batches SET cancelled = cancelled + :count WHERE parent_id = :parent",
        {"parent": parent_id, "count": len(cancelled)},
    )
    for job in cancelled:
        append(tx, [values_of(job.key, job.state, None, at, event, JobState.QUEUED)])
        was = dataclasses.replace(job, state=JobState.QUEUED)
        moved(tx, ending.move(was, job.state, at, message), job)
    asked = tx.rows(
        f"UPDATE jobs SET cancel_requested_at = :at WHERE id {AMONG} RETURNING *",  # noqa: S608
        values | among([row["id"] for row in open_ones if row["state"] != "Queued"]),
    )
    for row in asked:
        changed(tx, records.job(row))
    return bool(open_ones)


def insert_children(
    tx: Tx,
    batch: Batch,
    children: Sequence[NewChild],
    without_hold: int,
    at: Micros,
    message: str,
) -> None:
    """Queue some children, with their tags and first events."""
    values: dict[str, Any] = {"parent": batch.parent_id, "at": at, "message": message}
    own = batch.bundle and dataclasses.asdict(batch.bundle)
    values |= {name: own and own[name] for name in ("file", "size", "digest")}
    rows = []
    for n, child in enumerate(children):
        hold = None if n < without_hold else "parallel"
        given = {"n": child.name, "i": child.array_index, "l": child.array_line}
        given |= {"f": child.folder, "h": hold}
        values |= {f"{name}{n}": value for name, value in given.items()}
        rows.append(f"(:n{n}, :i{n}, :l{n}, :f{n}, :h{n}, {n})")
    added = tx.rows(
        f"""
        WITH child (name, array_index, array_line, folder, hold, number)
        AS (VALUES {", ".join(rows)})
        INSERT INTO jobs (state, created_at, queued_at, message, parent_id, child_name, name,
                          array_index, array_line, bundle_folder, hold, bundle_file, bundle_size,
                          bundle_digest, inputs_from, {_COPIED})
        SELECT 'Queued', :at, :at, :message, parent.id, child.name,
               parent.name || '[' || child.name || ']', child.array_index, child.array_line,
               child.folder, child.hold,
               coalesce(:file, bundle_file), coalesce(:size, bundle_size),
               coalesce(:digest, bundle_digest),
               -- The parent of an array never runs: its children get what it was to get.
               CASE WHEN child.array_index IS NULL THEN '[]' ELSE inputs_from END, {_COPIED}
        FROM child JOIN jobs AS parent ON parent.id = :parent ORDER BY child.number
        RETURNING id, service, user_id
        """,  # noqa: S608 - no user input
        values,
    )
    queued(tx, added[0]["service"], added[0]["user_id"], len(added))
    event = NewEvent(FIRST_EVENT, message)
    ids = sorted(row["id"] for row in added)
    append(tx, [values_of(AttemptKey(one, 0), JobState.QUEUED, None, at, event) for one in ids])
    tx.rows(
        """
        INSERT INTO job_tags (tag, job_id) SELECT tag, jobs.id FROM job_tags
        JOIN jobs ON jobs.parent_id = job_tags.job_id
        WHERE job_tags.job_id = :parent AND jobs.id >= :first
        """,
        {"parent": batch.parent_id, "first": ids[0]},
    )


def count_child(tx: Tx, child: Job, parent_id: int, move: Move) -> Job:
    """Count a child that has ended, or is queued again after its end.

    Of a batch with ``max_parallel``, as many of the children that have not ended are without
    ``hold`` as may be under way at once.

    Returns:
        The child, which may be held back now.
    """
    was, now = COUNTED.get(move.before), COUNTED.get(child.state)
    if was == now or child.state is JobState.CLEANED:
        return child
    changes = [f"{was} = {was} - 1"] if was else []
    changes += [f"{now} = {now} + 1"] if now else []
    rows = tx.rows(
        f"""
        UPDATE batches SET {", ".join(changes)} WHERE parent_id = :parent
        RETURNING max_parallel, made - completed - failed - cancelled AS unended
        """,  # noqa: S608 - no user input
        {"parent": parent_id},
    )
    most = rows[0]["max_parallel"]
    if not most:
        return child
    if now and child.hold is None:
        release_children(tx, parent_id, 1, move.at)
    elif was:
        hold = Hold.PARALLEL if rows[0]["unended"] > most else None
        held = {"hold": hold, "id": child.id}
        tx.rows("UPDATE jobs SET hold = :hold WHERE id = :id", held)
        return replace(child, hold=hold)
    return child


def release_children(tx: Tx, parent_id: int, most: int, at: Micros) -> None:
    """Let the first ``most`` of the children be claimed that are held back."""
    tx.rows(
        """
        UPDATE jobs SET hold = NULL, waits_since = :at WHERE id IN (
            SELECT id FROM jobs WHERE parent_id = :parent AND state = 'Queued'
            AND hold = 'parallel' ORDER BY id LIMIT :most
        )
        """,
        {"parent": parent_id, "most": most, "at": at},
    )
