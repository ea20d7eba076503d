"""What users ask for: new jobs, and what is to become of one: stored first, done afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any, Final

from server.domain.access import Visible
from server.domain.allowances import Quota, check_day, check_queue, check_stored
from server.domain.errors import BundleGone
from server.domain.jobs import BatchRequest, Hold, Job, Move, NewJob, Step
from server.domain.live import NewEvent
from server.domain.permits import TicketUsed
from server.domain.upload_fields import with_tags
from server.store import bundles, dependencies, jobs, records, users
from server.store.changes import changed, queued
from server.store.events import append, values_of
from server.store.queue import count_queued
from server.store.records import insert
from server.store.retention import check_deletable
from server.store.tokens import use_ticket
from shared.clock import Micros
from shared.sql import Row, Tx
from shared.wire import JobState

_TAG: Final = "INSERT INTO job_tags (tag, job_id) VALUES (:tag, :id)"


def insert_job(
    tx: Tx,
    new: NewJob,
    message: str,
    most: Quota = Quota(),  # noqa: B008 - it does not change
    visible: Visible = Visible(),  # noqa: B008
) -> tuple[Job, bool]:
    """Add a job as Queued, with its first event. ``visible``: the jobs that it may depend on.

    Returns:
        The job, and whether it is new: with an ``idempotency_key`` that the user has used
        before it is the job of that time.

    Raises:
        OverQuota
        BadField: it depends on a job that is not there, or not visible.
        TicketUsed: another job was made by its upload ticket.
        BundleGone: the bundle names no file, and there is none to share any more.
    """
    if new.idempotency_key is not None:
        known = job_of_key(tx, new.user_id, new.idempotency_key)
        if known is not None:
            return known, False
    children = 0 if new.batch is None else new.batch.tasks
    check_quota(tx, most, new.user_id, new.service, new.bundle.size, new.created_at, children)
    found = dependencies.check(tx, new, visible) if new.after or new.inputs_from else {}
    if new.ticket is not None and not use_ticket(tx, new.ticket):
        raise TicketUsed
    if new.schedule_id is None:
        bundle = bundles.refer_to(tx, new.bundle)
    else:
        bundle = bundles.refer_again(tx, new.bundle)
    if bundle is None:
        raise BundleGone
    values = records.new_job_columns(new) | records.bundle_columns(bundle) | {"message": message}
    if any(state != "met" for state in found.values()):
        values["hold"] = Hold.DEPENDENCY
    # A job that is to start later waits from then on.
    values |= {"queued_at": new.created_at, "waits_since": new.not_before or None}
    [row] = insert(tx, "jobs", values, "RETURNING *")
    job = records.job(row)
    if most.uploaded:  # without a limit nothing is counted
        users.count_upload(tx, new.user_id, new.bundle.size, new.created_at)
    tx.many(_TAG, [{"tag": tag, "id": job.id} for tag in set(new.tags)])
    dependencies.add(tx, job.id, new, found)
    if new.batch is not None:
        _add_batch(tx, job.id, new.batch)
    append(tx, [jobs.event_of(tx, job, None, Step(job.state, new.created_at, message))])
    queued(tx, job.service, job.user_id, 1)
    changed(tx, job)
    return job, True


def job_of_key(tx: Tx, user_id: str, key: str) -> Job | None:
    rows = tx.rows(
        "SELECT * FROM jobs WHERE user_id = :user_id AND idempotency_key = :key",
        {"user_id": user_id, "key": key},
    )
    return records.job(rows[0]) if rows else None


def check_quota(
    tx: Tx, most: Quota, user: str, service: str, size: int, at: Micros, children: int = 0
) -> None:
    """Refuse a job that is more than its user may have, in a transaction that writes. Raises
    OverQuota. ``size``: of its bundle.
    """
    if most.queued:
        waiting = count_queued(tx, service, user)
        check_queue(user, service, waiting, max(1, children), most.queued)
    if most.stored:
        check_stored(user, users.stored(tx, user)[user], size, most.stored)
    if most.uploaded:
        check_day(user, users.uploaded(tx, at, user)[user], size, most.uploaded, at)


def _add_batch(tx: Tx, job_id: int, batch: BatchRequest) -> None:
    """The row of a job that has children, or may leave some."""
    values = asdict(batch) | {"ranges": json.dumps(batch.ranges)}
    insert(tx, "batches", values | {"parent_id": job_id, "total": batch.tasks})


def request_cancel(tx: Tx, job_id: int, at: Micros, by: str) -> tuple[Job, bool]:
    """Store that a job is to be cancelled. From then on no child of it is claimed; the children are
    cancelled afterwards, some in each transaction. Raises NoSuchJob. Returns the job, and False if
    it has ended, or was to be cancelled before.
    """
    rows = tx.rows(
        """
        UPDATE jobs SET cancel_requested_at = :at
        WHERE id = :id AND ended_at IS NULL AND cancel_requested_at IS NULL RETURNING *
        """,
        {"id": job_id, "at": at},
    )
    if not rows:
        return jobs.get(tx, job_id), False
    message = f"{by or 'the server'} asked to cancel it"
    return _changed(tx, rows[0], at, "job.cancel_requested", message, by=by), True


def retry(
    tx: Tx, job_id: int, rule: Callable[[Job], Move], most_queued: Callable[[Job], int]
) -> Job | None:
    """Queue an ended job again. Raises NoSuchJob, OverQuota.

    Args:
        rule: the move; raises what speaks against it.
        most_queued: how many of the user's and the service's may wait; 0: any number.

    Returns:
        None: its parent does not wait for it.
    """
    job = jobs.get(tx, job_id)
    move, most = rule(job), Quota(most_queued(job))
    again = _queued_again(tx, job) if most.queued else 1
    check_quota(tx, most, job.user_id, job.service, 0, move.at, again)
    return jobs.move(tx, move)


def change_service(tx: Tx, job_id: int, service: str, at: Micros, by: str) -> Job:
    """Let a job be of another service from now on, with an event, unless it has ended. Raises
    NoSuchJob.
    """
    values = {"id": job_id, "service": service}
    was = tx.rows("SELECT service FROM jobs WHERE id = :id AND ended_at IS NULL", values)
    if not was or was[0]["service"] == service:
        return jobs.get(tx, job_id)
    [row] = tx.rows("UPDATE jobs SET service = :service WHERE id = :id RETURNING *", values)
    fields = {"by": by, "service": service, "service_before": was[0]["service"]}
    job = _changed(tx, row, at, "job.moved", f"{by} moved it to service {service}", **fields)
    if job.state is JobState.QUEUED:
        queued(tx, was[0]["service"], job.user_id, -1)
        queued(tx, service, job.user_id, 1)
    return job


def request_forget(tx: Tx, job_id: int, at: Micros, by: str) -> tuple[Job, bool]:
    """Store that the job is to be cancelled, and deleted as soon as it has ended, if it has not.

    Returns:
        As :func:`request_cancel`.

    Raises:
        NoSuchJob, ChildOfBatch
        StillNeeded: others wait for it. Nothing was changed.
    """
    check_deletable(tx, jobs.get(tx, job_id))
    job, is_new = request_cancel(tx, job_id, at, by)
    if job.ended or job.delete_requested_at is not None:
        return job, is_new
    row = tx.rows(
        "UPDATE jobs SET delete_requested_at = :at WHERE id = :id RETURNING *",
        {"id": job_id, "at": at},
    )[0]
    message = f"{by} asked to delete it"
    return _changed(tx, row, at, "job.delete_requested", message, by=by), is_new


def to_delete(tx: Tx, limit: int) -> list[Job]:
    """Ended jobs that are to be deleted."""
    return records.jobs(
        tx,
        """
        SELECT * FROM jobs WHERE delete_requested_at IS NOT NULL AND ended_at IS NOT NULL
        ORDER BY id LIMIT :limit
        """,
        {"limit": limit},
    )


def change_tags(
    tx: Tx, job_id: int, add: Collection[str], remove: Collection[str], at: Micros, by: str
) -> Job:
    """Add and remove tags of a job, whatever its state, with an event. Raises NoSuchJob,
    Conflict.
    """
    job = jobs.get(tx, job_id)
    tags = with_tags(job, add, remove)
    if tags == job.tags:
        return job
    [row] = tx.rows(
        "UPDATE jobs SET tags = :tags WHERE id = :id RETURNING *",
        {"id": job_id, "tags": json.dumps(tags)},
    )
    tx.rows("DELETE FROM job_tags WHERE job_id = :id", {"id": job_id})
    tx.many(_TAG, [{"tag": tag, "id": job_id} for tag in set(tags)])
    message = f"{by} set its tags to {', '.join(tags)}" if tags else f"{by} removed its tags"
    return _changed(tx, row, at, "job.tagged", message, by=by, tags=list(tags))


def _changed(tx: Tx, row: Row, at: Micros, event: str, message: str, **fields: Any) -> Job:
    """The job of a row that was just changed, with an event that says so."""
    job = records.job(row)
    new = NewEvent(event, message, fields=fields)
    append(tx, [values_of(job.key, job.state, job.agent, at, new)])
    changed(tx, job)
    return job


def _queued_again(tx: Tx, job: Job) -> int:
    """How many jobs wait after a retry of the job: of a parent, its children."""
    rows = tx.rows(
        """
        SELECT total - completed AS count FROM batches JOIN jobs ON jobs.id = batches.parent_id
        WHERE batches.parent_id = :id AND deferred = 1
        """,
        {"id": job.id},
    )
    return max(1, rows[0]["count"]) if rows else 1
