"""Retention: an expired job loses its files first, and later its row and history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from server.domain import ending
from server.domain.allowances import day_of
from server.domain.errors import ChildOfBatch, Conflict, StillNeeded
from server.domain.jobs import FileKind, Job
from server.store import jobs, records
from server.store.bundles import release_files
from server.store.changes import changed
from server.store.dependencies import NEEDED, RESULT_NEEDED, waiting_for
from shared.clock import SECOND, Micros
from shared.sql import AMONG, Tx, among

_KEYS_KEPT: Final = 86_400 * SECOND
_KEYS_AT_ONCE: Final = 1_000
_UPLOADED_KEPT: Final = 31 * 86_400 * SECOND
_USAGE_KEPT: Final = 400 * 86_400 * SECOND
"""A year can be looked at until the month after it is over."""
_CHILDREN_AT_ONCE: Final = 500
_CHILDREN: Final = "SELECT id FROM jobs WHERE parent_id = :id ORDER BY id LIMIT 500"
_FORGETTABLE: Final = f"""
    SELECT id FROM jobs WHERE state = 'Cleaned' AND service = :service AND ended_at <= :before
    AND NOT EXISTS (SELECT 1 FROM jobs AS child WHERE child.parent_id = jobs.id)
    AND NOT {NEEDED}
    ORDER BY ended_at LIMIT :limit
"""  # noqa: S608 - no user input


def expired(tx: Tx, now: Micros, limit: int) -> list[Job]:
    """Ended jobs whose ``expires_at`` has passed."""
    return records.jobs(
        tx,
        f"""
        SELECT * FROM jobs WHERE expires_at IS NOT NULL AND expires_at <= :now
        AND NOT {RESULT_NEEDED}
        ORDER BY expires_at, id LIMIT :limit
        """,  # noqa: S608 - no user input
        {"now": now, "limit": limit},
    )


def files_in_use(tx: Tx, names: Sequence[str]) -> set[str]:
    """Those of the stored files' names that a bundle or an attempt refers to."""
    in_use: set[str] = set()
    for column, table in (("file", "bundles"), ("result_file", "attempts")):
        rows = tx.rows(
            f"SELECT {column} AS file FROM {table} "  # noqa: S608 - no user input
            f"WHERE {column} IS NOT NULL AND {column} {AMONG}",
            among(names),
        )
        in_use |= {row["file"] for row in rows}
    return in_use


def clean_expired(tx: Tx, now: Micros, limit: int) -> tuple[list[int], list[tuple[FileKind, str]]]:
    """As :func:`clean`, of jobs that have expired."""
    return clean(tx, expired(tx, now, limit), now)


def clean(
    tx: Tx, found: Sequence[Job], now: Micros
) -> tuple[list[int], list[tuple[FileKind, str]]]:
    """Move the jobs to Cleaned, and drop their idempotency keys. Children of these jobs are for
    :func:`expire_children`.

    Returns:
        Which were moved; kind and name of the files that nothing refers to any more.
    """
    moves = [ending.expired(job, now) for job in found]
    ids = [job.id for move in moves if (job := jobs.move(tx, move)) is not None]
    params = among(ids)
    sql = f"UPDATE jobs SET array_line = NULL, idempotency_key = NULL WHERE id {AMONG}"  # noqa: S608
    tx.rows(sql, params)
    # The children of a batch go with their parent, which is never queued again.
    sql = f"UPDATE batches SET rest_after = 0 WHERE parent_id {AMONG} AND made > 0"  # noqa: S608
    tx.rows(sql, params)
    return ids, release_files(tx, ids)


def expire_children(tx: Tx, at: Micros) -> bool:
    """Let some of the children of Cleaned parents expire. False: there are no more."""
    rows = tx.rows(  # CROSS: few batches have a rest, and very many jobs are Cleaned
        """
        SELECT child.parent_id, child.id FROM batches CROSS JOIN jobs AS parent
        CROSS JOIN jobs AS child WHERE rest_after IS NOT NULL
        AND parent.id = batches.parent_id AND parent.state = 'Cleaned'
        AND child.parent_id = batches.parent_id AND child.id > rest_after
        ORDER BY batches.parent_id, child.id LIMIT :most
        """,
        {"most": _CHILDREN_AT_ONCE},
    )
    sql = f"UPDATE jobs SET expires_at = :at WHERE id {AMONG}"  # noqa: S608 - no user input
    tx.rows(sql, among([row["id"] for row in rows]) | {"at": at})
    for parent, child in {row["parent_id"]: row["id"] for row in rows}.items():
        sql = "UPDATE batches SET rest_after = :child WHERE parent_id = :parent"
        tx.rows(sql, {"parent": parent, "child": child})
    if len(rows) < _CHILDREN_AT_ONCE:
        tx.rows(
            """
            UPDATE batches SET rest_after = NULL WHERE rest_after IS NOT NULL AND EXISTS (
                SELECT 1 FROM jobs WHERE id = batches.parent_id AND state = 'Cleaned'
            )
            """
        )
    return len(rows) == _CHILDREN_AT_ONCE


def delete(tx: Tx, job_id: int) -> tuple[bool, list[tuple[FileKind, str]]]:
    """Delete an ended job and its history, or some of its children, which go before it: a crash
    leaves a deletion that goes on. Its number is not given again.

    Returns:
        False: to be called again; kind and name of the files that nothing refers to any more.

    Raises:
        NoSuchJob, ChildOfBatch, StillNeeded
        Conflict: it has not ended.
    """
    job = jobs.get(tx, job_id)
    if not job.ended:
        raise Conflict("not_ended", f"job {job_id} is {job.state}: cancel it before you delete it")
    check_deletable(tx, job)
    children = [row["id"] for row in tx.rows(_CHILDREN, {"id": job_id})]
    if children:
        tx.rows(
            """
            UPDATE jobs SET delete_requested_at = coalesce(delete_requested_at, ended_at)
            WHERE id = :id
            """,
            {"id": job_id},
        )
    else:
        changed(tx, job)
    deleted = children or [job_id]
    files = release_files(tx, deleted)
    delete_rows(tx, deleted)
    return not children, files


def check_deletable(tx: Tx, job: Job) -> None:
    """Raises ChildOfBatch, StillNeeded: jobs that have not ended depend on it."""
    if job.parent_id is not None:
        raise ChildOfBatch(job.id, job.parent_id)
    if waiting := waiting_for(tx, job.id):
        raise StillNeeded(job.id, waiting)


def cleaned_services(tx: Tx) -> list[str]:
    """Services of which there are Cleaned jobs."""
    services: list[str] = []
    while following := tx.rows(
        """
        SELECT service FROM jobs WHERE state = 'Cleaned' AND service > :after
        ORDER BY service LIMIT 1
        """,
        {"after": services[-1] if services else ""},
    ):
        services.append(following[0]["service"])
    return services


def forget(tx: Tx, service: str, ended_before: Micros, limit: int) -> int:
    """Delete Cleaned jobs and their histories; how many, ``limit`` at most."""
    params = {"service": service, "before": ended_before, "limit": limit}
    ids = [row["id"] for row in tx.rows(_FORGETTABLE, params)]
    delete_rows(tx, ids)
    return len(ids)


def forget_old(tx: Tx, now: Micros) -> bool:
    """Forget some old idempotency keys, what was uploaded and used on old days, and used tickets
    that cannot come again. False: there are no more keys.
    """
    sql = """
        UPDATE jobs SET idempotency_key = NULL WHERE id IN (
            SELECT id FROM jobs WHERE idempotency_key IS NOT NULL AND created_at < :at LIMIT :most
        ) RETURNING id
    """
    keys = tx.rows(sql, {"at": now - _KEYS_KEPT, "most": _KEYS_AT_ONCE})
    tx.rows("DELETE FROM uploaded WHERE day < :day", {"day": day_of(now - _UPLOADED_KEPT)})
    tx.rows("DELETE FROM daily_usage WHERE day < :day", {"day": day_of(now - _USAGE_KEPT)})
    tx.rows("DELETE FROM used_tickets WHERE expires_at < :at", {"at": now})
    return len(keys) == _KEYS_AT_ONCE


def delete_rows(tx: Tx, job_ids: Sequence[int]) -> None:
    """Delete the rows, after all rows that refer to them. AUTOINCREMENT never reuses a number."""
    params = among(job_ids)
    for table in ("job_tags", "events", "attempts", "dependencies", "deliveries"):
        tx.rows(f"DELETE FROM {table} WHERE job_id {AMONG}", params)  # noqa: S608
    tx.rows(f"DELETE FROM batches WHERE parent_id {AMONG}", params)  # noqa: S608
    tx.rows(f"DELETE FROM jobs WHERE id {AMONG}", params)  # noqa: S608
