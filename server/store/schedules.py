"""Schedules, and the one transaction in which a time of theirs becomes a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from server.domain.errors import BundleGone, FerrymanError, ServerPaused, StorageFull
from server.domain.files import FileKind
from server.domain.jobs import Bundle, Job
from server.domain.leases import Lease
from server.domain.schedules import (
    MOST_OPEN,
    Fired,
    NewSchedule,
    NoSuchSchedule,
    Outcome,
    Schedule,
    ScheduleRefusal,
    Timing,
    TooManySchedules,
)
from server.ports.schedules import Firing
from server.store import bundles, leases, uploaded
from server.store.inserts import insert_job, stored_bytes
from server.store.requests import request_cancel
from shared.clock import Micros
from shared.sql import Database, Row, Transaction

_OPEN: Final = """
    SELECT id FROM jobs WHERE schedule_id = :id AND ended_at IS NULL ORDER BY id LIMIT :most
"""
_MOVE_ON: Final = """
    UPDATE schedules SET next_at = :next, pending = 0
    WHERE id = :id AND paused = 0 AND next_at = :seen AND (next_at <= :now OR pending = 1)
    RETURNING id
"""


class SqlSchedules:
    """``ports.Schedules`` over a database.

    Args:
        changed: called with the job after each commit that made or changed one.
    """

    def __init__(self, database: Database, changed: Callable[[Job], None]) -> None:
        self._database, self._changed = database, changed

    async def insert(
        self,
        new: NewSchedule,
        most: int,
        most_stored: int,
        lease: Lease | None,
        most_uploaded: int = 0,
    ) -> Schedule:
        async def change(tx: Transaction) -> Schedule | FerrymanError:
            of_user = await tx.rows(
                "SELECT id, name FROM schedules WHERE user_id = :user_id", {"user_id": new.user_id}
            )
            for row in of_user:
                if row["name"] == new.name:
                    message = (
                        f"user {new.user_id} has a schedule {new.name!r}: schedule {row['id']}"
                    )
                    return ScheduleRefusal("schedule_exists", message)
            if most and len(of_user) >= most:
                return TooManySchedules(new.user_id, most)
            if most_stored:
                stored = await stored_bytes(tx, new.user_id)
                if stored + new.bundle.size > most_stored:
                    return StorageFull(new.user_id, stored, most_stored)
            refusal = await uploaded.check(
                tx, new.user_id, new.bundle.size, most_uploaded, new.created_at
            )
            if refusal is not None:
                return refusal
            bundle = await bundles.refer_to(tx, new.bundle, new.created_at)
            if bundle is None:
                return BundleGone()
            values = _columns(new, bundle)
            rows = await tx.rows(
                f"""
                INSERT INTO schedules ({", ".join(values)})
                SELECT {", ".join(f":{name}" for name in values)}
                {f"WHERE {leases.HELD}" if lease is not None else ""} RETURNING *
                """,
                values | (leases.held(lease) if lease is not None else {}),
            )
            if not rows:
                await bundles.forget_reference(tx, bundle.file)
                return ServerPaused()
            await uploaded.add(tx, new.user_id, new.bundle.size, new.created_at)
            return _schedule(rows[0])

        inserted = await self._database.write(change)
        if isinstance(inserted, FerrymanError):
            raise inserted
        return inserted

    async def get(self, number: int) -> Schedule:
        return await _get(self._database, number)

    async def page(
        self, user_id: str | None, submitted_by: str | None, before_id: int | None, limit: int
    ) -> tuple[list[Schedule], int | None]:
        chosen = {"user_id": user_id, "submitted_by": submitted_by}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        fits = "".join(f"{name} = :{name} AND " for name in chosen)
        rows = await self._database.list_rows(
            f"SELECT * FROM schedules WHERE {fits} id < :before ORDER BY id DESC LIMIT :limit",  # noqa: S608 - no user input
            chosen | {"before": before_id or 2**63 - 1, "limit": limit + 1},
        )
        found = [_schedule(row) for row in rows[:limit]]
        return found, found[-1].id if len(rows) > limit else None

    async def delete(self, number: int) -> list[tuple[FileKind, str]]:
        async def change(tx: Transaction) -> list[tuple[FileKind, str]]:
            rows = await tx.rows(
                "DELETE FROM schedules WHERE id = :id RETURNING bundle_file", {"id": number}
            )
            files = [row["bundle_file"] for row in rows]
            return [
                (FileKind.BUNDLE, file)
                for file in files
                if await bundles.forget_reference(tx, file)
            ]

        return await self._database.write(change)

    async def set_paused(self, number: int, next_at: Micros | None) -> Schedule:
        async def change(tx: Transaction) -> Schedule | None:
            rows = await tx.rows(
                """
                UPDATE schedules SET paused = :paused, pending = 0,
                    next_at = coalesce(:next, next_at)
                WHERE id = :id RETURNING *
                """,
                {"id": number, "paused": int(next_at is None), "next": next_at},
            )
            return _schedule(rows[0]) if rows else None

        schedule = await self._database.write(change)
        if schedule is None:
            raise NoSuchSchedule(number)
        return schedule

    async def due(self, now: Micros, limit: int) -> list[Schedule]:
        rows = await self._database.rows(
            """
            SELECT * FROM (
                SELECT * FROM schedules WHERE paused = 0 AND next_at <= :now
                ORDER BY next_at LIMIT :limit
            ) AS now_due
            UNION
            SELECT * FROM schedules WHERE pending = 1 AND paused = 0 AND NOT EXISTS (
                SELECT 1 FROM jobs WHERE schedule_id = schedules.id AND ended_at IS NULL
            )
            """,
            {"now": now, "limit": limit},
        )
        return [_schedule(row) for row in rows]

    async def next_at(self) -> Micros | None:
        rows = await self._database.rows(
            "SELECT min(next_at) AS next_at FROM schedules WHERE paused = 0"
        )
        return rows[0]["next_at"] if rows else None

    async def due_behind(self, at: Micros, after_id: int, limit: int) -> list[Schedule]:
        rows = await self._database.rows(
            """
            SELECT * FROM schedules WHERE id > :after AND paused = 0 AND next_at > :at
            ORDER BY id LIMIT :limit
            """,
            {"at": at, "after": after_id, "limit": limit},
        )
        return [_schedule(row) for row in rows]

    async def correct(self, schedule: Schedule, next_at: Micros) -> None:
        await self._database.write(
            lambda tx: tx.rows(
                "UPDATE schedules SET next_at = :next WHERE id = :id AND next_at = :seen",
                {"id": schedule.id, "seen": schedule.next_at, "next": next_at},
            )
        )

    async def fire(self, firing: Firing) -> Fired:
        fired, jobs = await self._database.write(lambda tx: _fire(tx, firing))
        for job in jobs:
            self._changed(job)
        return fired


async def _fire(tx: Transaction, firing: Firing) -> tuple[Fired, list[Job]]:
    """The transaction, and the jobs that it made or changed."""
    number = firing.schedule.id
    seen = {"id": number, "seen": firing.schedule.next_at, "now": firing.at}
    if firing.by_hand:
        await _get(tx, number)
    elif not await tx.rows(_MOVE_ON, seen | {"next": firing.next_at}):
        return Fired(Outcome.GONE), []
    if firing.new is None:
        return await _no_job(tx, number, Outcome.REFUSED, firing.refusal), []
    overlap = firing.schedule.timing.overlap
    open_jobs = [row["id"] for row in await tx.rows(_OPEN, {"id": number, "most": MOST_OPEN})]
    if open_jobs and overlap == "replace":
        by = f"schedule {number}"
        asked = [await request_cancel(tx, job_id, firing.at, by) for job_id in open_jobs]
        await tx.rows("UPDATE schedules SET pending = 1 WHERE id = :id", {"id": number})
        message = f"waits until job {open_jobs[-1]} has been cancelled"
        fired = await _no_job(tx, number, Outcome.PENDING, message)
        return fired, [job for job in asked if job is not None]
    if open_jobs and overlap == "skip_if_running":
        message = f"skipped: job {open_jobs[-1]} has not ended"
        return await _no_job(tx, number, Outcome.SKIPPED, message), []
    if len(open_jobs) == MOST_OPEN:
        message = f"skipped: {MOST_OPEN} of its jobs have not ended"
        return await _no_job(tx, number, Outcome.SKIPPED, message), []
    message = f"queued by schedule {number} ({firing.schedule.name})"
    inserted = await insert_job(tx, firing.new, message, firing.most_queued, firing.most_stored)
    if isinstance(inserted, FerrymanError):
        return await _no_job(tx, number, Outcome.REFUSED, str(inserted)), []
    job, _ = inserted
    await tx.rows(
        "UPDATE schedules SET last_at = :at, last_job_id = :job, message = '' WHERE id = :id",
        {"id": number, "at": firing.at, "job": job.id},
    )
    return Fired(Outcome.QUEUED, message, job.id), [job]


async def _no_job(tx: Transaction, number: int, how: Outcome, message: str) -> Fired:
    await tx.rows(
        "UPDATE schedules SET message = :message WHERE id = :id", {"id": number, "message": message}
    )
    return Fired(how, message)


async def _get(source: Database | Transaction, number: int) -> Schedule:
    rows = await source.rows("SELECT * FROM schedules WHERE id = :id", {"id": number})
    if not rows:
        raise NoSuchSchedule(number)
    return _schedule(rows[0])


def _columns(new: NewSchedule, bundle: Bundle) -> dict[str, Any]:
    return {
        "name": new.name,
        "user_id": new.user_id,
        "service": new.service,
        "submitted_by": new.submitted_by,
        "cron": new.timing.cron,
        "time_zone": new.timing.time_zone,
        "overlap": new.timing.overlap,
        "missed": new.timing.missed,
        "fields": json.dumps(dict(new.fields)),
        "bundle_file": bundle.file,
        "bundle_size": bundle.size,
        "bundle_digest": bundle.digest,
        "tasks": new.tasks,
        "has_gather": int(new.has_gather),
        "next_at": new.next_at,
        "created_at": new.created_at,
    }


def _schedule(row: Row) -> Schedule:
    return Schedule(
        id=row["id"],
        name=row["name"],
        user_id=row["user_id"],
        service=row["service"],
        submitted_by=row["submitted_by"],
        timing=Timing(row["cron"], row["time_zone"], row["overlap"], row["missed"]),
        fields=json.loads(row["fields"]),
        bundle=Bundle(row["bundle_file"], row["bundle_size"], row["bundle_digest"]),
        tasks=row["tasks"],
        has_gather=bool(row["has_gather"]),
        next_at=row["next_at"],
        created_at=row["created_at"],
        paused=bool(row["paused"]),
        pending=bool(row["pending"]),
        last_at=row["last_at"],
        last_job_id=row["last_job_id"],
        message=row["message"],
    )
