"""Schedules, and the one transaction in which a time of theirs becomes a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from server.domain.allowances import Quota
from server.domain.errors import BundleGone, Conflict, FerrymanError
from server.domain.jobs import Bundle, Job, NewJob
from server.domain.schedules import Schedule
from server.store import bundles, records, users
from server.store.records import insert as insert_row
from server.store.records import reader
from server.store.requests import check_quota, insert_job
from shared.clock import Micros
from shared.sql import Tx

MOST_OF_USER: Final = 100
"""Schedules of one user: each has a stored bundle, and is looked at when it is due."""
_OPEN: Final = "SELECT max(id) AS id FROM jobs WHERE schedule_id = :id AND ended_at IS NULL"
_schedule: Final = reader(
    Schedule, {"fields": json.loads, "has_gather": bool}, {"bundle": records.bundle}
)


def all_schedules(tx: Tx) -> list[Schedule]:
    return [_schedule(row) for row in tx.rows("SELECT * FROM schedules ORDER BY id")]


def insert(tx: Tx, new: Mapping[str, Any], bundle: Bundle, most: Quota) -> Schedule:
    """Add a schedule, which refers to its bundle. Raises Conflict, OverQuota, BundleGone.
    ``new``: the columns that it is made with.
    """
    user, now = new["user_id"], new["created_at"]
    of_user = tx.rows("SELECT id, name FROM schedules WHERE user_id = :user", {"user": user})
    for row in of_user:
        if row["name"] == new["name"]:
            message = f"user {user} has a schedule {row['name']!r}: schedule {row['id']}"
            raise Conflict("schedule_exists", message)
    if len(of_user) >= MOST_OF_USER:
        message = f"user {user} has {MOST_OF_USER} schedules, which is the most; delete one first"
        raise Conflict("too_many_schedules", message)
    check_quota(tx, most, user, new["service"], bundle.size, now)
    kept = bundles.refer_to(tx, bundle)
    if kept is None:
        raise BundleGone
    if most.uploaded:
        users.count_upload(tx, user, kept.size, now)
    [row] = insert_row(tx, "schedules", {**new, **records.bundle_columns(kept)}, "RETURNING *")
    return _schedule(row)


def fire(
    tx: Tx, schedule: Schedule, next_at: Micros, new: NewJob | str, most: Quota
) -> tuple[Schedule, Job | str]:
    """Move a schedule on to its next time and make the job.

    Args:
        new: the job, or why there can be none.

    Returns:
        The schedule, and the job or why there is none.
    """
    made = _make(tx, schedule, new, most)
    values = {"id": schedule.id, "next": next_at, "at": None, "job": None, "message": made}
    if isinstance(made, Job):
        values |= {"at": made.created_at, "job": made.id, "message": ""}
    [row] = tx.rows(
        """
        UPDATE schedules SET next_at = :next, last_at = coalesce(:at, last_at),
            last_job_id = coalesce(:job, last_job_id), message = :message
        WHERE id = :id RETURNING *
        """,
        values,
    )
    return _schedule(row), made


def _make(tx: Tx, schedule: Schedule, new: NewJob | str, most: Quota) -> Job | str:
    if isinstance(new, str):
        return new
    [open_job] = tx.rows(_OPEN, {"id": schedule.id})
    if open_job["id"] is not None:
        return f"skipped: job {open_job['id']} has not ended"
    message = f"queued by schedule {schedule.id} ({schedule.name})"
    try:
        return insert_job(tx, new, message, most)[0]
    except FerrymanError as refusal:
        return str(refusal)


def delete(tx: Tx, number: int) -> str | None:
    """Delete a schedule, not its jobs; its bundle's file, if nothing refers to it any more."""
    for row in tx.rows("DELETE FROM schedules WHERE id = :id RETURNING *", {"id": number}):
        if bundles.forget_reference(tx, row["bundle_file"]):
            return str(row["bundle_file"])
    return None
