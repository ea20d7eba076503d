"""The queue: who waits, who holds slots. Reads only, by partial indexes."""

from __future__ import annotations

from typing import Final

from server.domain.fairshare import Waiting
from server.domain.jobs import Job
from server.domain.quotas import Service
from server.ports import Held
from server.store import rows
from shared.clock import Micros
from shared.database import Database

HELD: Final = "state IN ('Processing', 'Submitted', 'Running', 'Unknown')"
"""HOLDS_SLOT, in the words of the index ``jobs_held``."""


class Queue:
    """The part of ``ports.Jobs`` that the Sender chooses by."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def waiting(
        self, service: Service, after_user: str, users: int, each: int, now: Micros
    ) -> tuple[list[Waiting], str | None]:
        # Steps from user to user through the index: its cost is the users looked at, not the queue.
        # Queued in the future: the clock was set back, and not_before means nothing any more.
        found = await self._database.rows(
            """
            WITH RECURSIVE line (user_id, number) AS (
                SELECT min(user_id), 1 FROM jobs
                WHERE state = 'Queued' AND service = :service AND user_id > :after
                UNION ALL
                SELECT (SELECT min(user_id) FROM jobs
                        WHERE state = 'Queued' AND service = :service AND user_id > line.user_id),
                       number + 1
                FROM line WHERE line.user_id IS NOT NULL AND number < :users
            )
            SELECT line.user_id, number, jobs.id, jobs.attempt FROM line LEFT JOIN jobs ON jobs.id
            IN (
                SELECT id FROM jobs WHERE state = 'Queued' AND service = :service
                AND user_id = line.user_id AND (not_before <= :now OR queued_at > :now)
                ORDER BY id LIMIT :each
            )
            WHERE line.user_id IS NOT NULL ORDER BY number, jobs.id
            """,
            {
                "service": service.name,
                "after": after_user,
                "users": users,
                "each": each,
                "now": now,
            },
        )
        last = found[-1]["user_id"] if found and found[-1]["number"] == users else None
        ready = [
            Waiting(row["id"], row["user_id"], row["attempt"])
            for row in found
            if row["id"] is not None
        ]
        return ready, last

    async def anything_queued(self) -> bool:
        found = await self._database.rows("SELECT 1 FROM jobs WHERE state = 'Queued' LIMIT 1")
        return bool(found)

    async def held(self) -> list[Held]:
        found = await self._database.rows(
            f"""
            SELECT service, user_id, agent, count(*) AS slots FROM jobs
            WHERE {HELD} GROUP BY service, user_id, agent
            """  # noqa: S608 - our own words
        )
        return [
            Held(row["service"], row["user_id"], row["agent"] or "", row["slots"]) for row in found
        ]

    async def queued(self, service: str, user_id: str, limit: int) -> int:
        found = await self._database.rows(
            """
            SELECT count(*) AS count FROM (
                SELECT 1 FROM jobs WHERE state = 'Queued' AND service = :service
                AND user_id = :user_id LIMIT :limit
            )
            """,
            {"service": service, "user_id": user_id, "limit": limit},
        )
        return int(found[0]["count"])

    async def queued_before(self, job: Job) -> int:
        found = await self._database.rows(
            """
            SELECT count(*) AS count FROM (
                SELECT 1 FROM jobs WHERE state = 'Queued' AND service = :service
                AND user_id = :user_id AND id < :id LIMIT 1000
            )
            """,
            {"service": job.service, "user_id": job.user_id, "id": job.id},
        )
        return int(found[0]["count"])

    async def longest_queued(self, service: str, limit: int) -> list[Job]:
        found = await self._database.rows(
            """
            SELECT * FROM jobs WHERE state = 'Queued' AND service = :service
            ORDER BY queued_at LIMIT :limit
            """,
            {"service": service, "limit": limit},
        )
        return [rows.job(row) for row in found]
