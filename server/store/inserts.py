"""New jobs: a row with what refers to it, inside a transaction of the caller's."""

from __future__ import annotations

import json
from typing import Final

from server.domain.allowances import Quota, check_day
from server.domain.errors import BundleGone, QueueFull, StorageFull
from server.domain.jobs import BatchRequest, Hold, Job, NewJob, Step
from server.domain.permits import TicketUsed
from server.store import bundles, dependencies, records, users
from server.store.columns import insert
from server.store.jobs import append_event
from server.store.permits import use_ticket
from server.store.queue import count_queued
from server.store.statements import changed, queued
from shared.clock import Micros
from shared.sql import Tx

NO_QUOTA: Final = Quota()


def insert_job(
    tx: Tx,
    new: NewJob,
    message: str,
    most: Quota = NO_QUOTA,
) -> tuple[Job, bool]:
    """Add a job as Queued, with its first event.

    Returns:
        The job, and whether it is new: with an ``idempotency_key`` that the user has used
        before it is the job of that time.

    Raises:
        QueueFull, StorageFull, DayUsed, OverDay
        TicketUsed: another job was made by its upload ticket.
        BundleGone: the bundle names no file, and there is none to share any more.
    """
    if new.idempotency_key is not None:
        known = job_of_key(tx, new.user_id, new.idempotency_key)
        if known is not None:
            return known, False
    children = 0 if new.batch is None else new.batch.total
    check_quota(tx, most, new.user_id, new.service, new.bundle.size, new.created_at, children)
    found = dependencies.check(tx, new) if new.after or new.inputs_from else {}
    if new.ticket is not None and not use_ticket(tx, new.ticket):
        raise TicketUsed
    if new.schedule_id is None:
        bundle = bundles.refer_to(tx, new.bundle)
    else:
        bundle = bundles.refer_again(tx, new.bundle)
    if bundle is None:
        raise BundleGone
    values = records.new_job_columns(new) | {"message": message, "bundle_file": bundle.file}
    if any(state != "met" for state in found.values()):
        values["hold"] = Hold.DEPENDENCY
    # A job that is to start later waits from then on.
    values |= {"queued_at": new.created_at, "waits_since": new.not_before or None}
    [row] = insert(tx, "jobs", values, "RETURNING *")
    job = records.job(row)
    if most.uploaded:  # without a limit nothing is counted
        users.count_upload(tx, new.user_id, new.bundle.size, new.created_at)
    for tag in set(new.tags):
        insert(tx, "job_tags", {"tag": tag, "job_id": job.id})
    dependencies.add(tx, job.id, new, found)
    if new.idempotency_key is not None:
        values = {"user_id": new.user_id, "key": new.idempotency_key, "job_id": job.id}
        insert(tx, "idempotency_keys", values | {"created_at": new.created_at})
    if new.batch is not None:
        _add_batch(tx, job.id, new.batch)
    append_event(tx, job, None, Step(job.state, new.created_at, message))
    queued(tx, job.service, job.user_id, 1)
    changed(tx, job)
    return job, True


def job_of_key(tx: Tx, user_id: str, key: str) -> Job | None:
    rows = tx.rows(
        """
        SELECT jobs.* FROM idempotency_keys JOIN jobs ON jobs.id = job_id
        WHERE idempotency_keys.user_id = :user_id AND key = :key
        """,
        {"user_id": user_id, "key": key},
    )
    return records.job(rows[0]) if rows else None


def check_quota(
    tx: Tx, most: Quota, user: str, service: str, size: int, at: Micros, children: int = 0
) -> None:
    """Refuse a job that is more than its user may have, in a transaction that writes. Raises
    QueueFull, StorageFull, DayUsed, OverDay. ``size``: of its bundle.
    """
    jobs = max(1, children)
    if most.queued and count_queued(tx, service, user) + jobs > most.queued:
        raise QueueFull(user, service, most.queued, jobs)
    if most.stored and (stored := users.stored(tx, user)[user]) + size > most.stored:
        raise StorageFull(user, stored, most.stored)
    if most.uploaded:
        check_day(user, users.uploaded(tx, at, user)[user], size, most.uploaded, at)


def _add_batch(tx: Tx, job_id: int, batch: BatchRequest) -> None:
    """The row of a job that has children, or may leave some."""
    values = {
        "parent_id": job_id,
        "ranges": json.dumps(batch.ranges),
        "array_file": batch.file,
        "max_parallel": batch.max_parallel,
        "fail_fast": int(batch.fail_fast),
        "has_gather": int(batch.has_gather),
        "total": batch.total,
    }
    insert(tx, "batches", values)
