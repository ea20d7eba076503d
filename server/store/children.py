"""What a move means for a child of a batch, and for the counts of its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from server.domain.jobs import Hold, Job, Move
from shared.clock import Micros
from shared.sql import Tx
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
        release_child(tx, parent_id, move.at)
    elif was:
        hold = Hold.PARALLEL if rows[0]["unended"] > most else None
        held = {"hold": hold, "id": child.id}
        tx.rows("UPDATE jobs SET hold = :hold WHERE id = :id", held)
        return replace(child, hold=hold)
    return child


def release_child(tx: Tx, parent_id: int, at: Micros) -> None:
    """Let the first of the children be claimed that are held back."""
    tx.rows(
        """
        UPDATE jobs SET hold = NULL, waits_since = :at WHERE id IN (
            SELECT id FROM jobs WHERE parent_id = :parent AND state = 'Queued'
            AND hold = 'parallel' ORDER BY id LIMIT 1
        )
        """,
        {"parent": parent_id, "at": at},
    )
