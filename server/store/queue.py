"""The queue: who waits, who holds slots. Reads only, by partial indexes."""

from __future__ import annotations

from typing import Final

from server.domain.fairshare import Waiting
from server.domain.jobs import Job
from server.domain.service import Service
from server.ports import Held
from server.store import rows
from shared.clock import Micros
from shared.sqlite.database import Database
from shared.sqlite.transactions import Transaction

HELD: Final = "state IN ('Processing', 'Submitted', 'Running', 'Unknown')"
"""HOLDS_SLOT, in the words of the index ``jobs_held``."""


_AT_ONCE: Final = 1_000
# Queued in the future: the clock was set back, and not_before means nothing any more.
_DUE: Final = """
    SELECT id FROM jobs WHERE state = 'Queued' AND not_before > 0 AND not_before <= :now
    UNION ALL
    SELECT id FROM jobs WHERE state = 'Queued' AND not_before > 0 AND queued_at > :now
"""


async def count_queued(
    source: Database | Transaction, service: str, user_id: str, limit: int
) -> int:
    """Jobs of the user that wait, delayed ones too; counts no further than ``limit``."""
    found = await source.rows(
        """
        SELECT count(*) AS count FROM (
            SELECT 1 FROM jobs WHERE user_id = :user_id AND service = :service
            AND state = 'Queued' LIMIT :limit
        )
        """,
        {"service": service, "user_id": user_id, "limit": limit},
    )
    return int(found[0]["count"])


class Queue:
    """The part of ``ports.Jobs`` that the Sender chooses by."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def waiting(
        self, service: Service, after_user: str, users: int, each: int
    ) -> tuple[list[Waiting], str | None]:
        # Steps from user to user through the index: its cost is the users looked at, not the queue.
        found = await self._database.rows(
            """
            WITH RECURSIVE line (user_id, number) AS (
                SELECT (SELECT user_id FROM jobs
                        WHERE state = 'Queued' AND not_before = 0
                        AND service = :service AND user_id > :after ORDER BY user_id LIMIT 1), 1
                UNION ALL
                SELECT (SELECT user_id FROM jobs
                        WHERE state = 'Queued' AND not_before = 0
                        AND service = :service AND user_id > line.user_id
                        ORDER BY user_id LIMIT 1),
                       number + 1
                FROM line WHERE line.user_id IS NOT NULL AND number < :users
            )
            SELECT line.user_id, number, jobs.id, jobs.attempt FROM line LEFT JOIN jobs ON jobs.id
            IN (
                SELECT id FROM jobs WHERE state = 'Queued' AND not_before = 0
                AND service = :service AND user_id = line.user_id
                ORDER BY id LIMIT :each
            )
            WHERE line.user_id IS NOT NULL ORDER BY number, jobs.id
            """,
            {
                "service": service.name,
                "after": after_user,
                "users": users,
                "each": each,
            },
        )
        last = found[-1]["user_id"] if found and found[-1]["number"] == users else None
        ready = [
            Waiting(row["id"], row["user_id"], row["attempt"])
            for row in found
            if row["id"] is not None
        ]
        return ready, last

    async def release_delayed(self, now: Micros) -> int:
        due = await self._database.rows(f"{_DUE} LIMIT 1", {"now": now})
        if not due:
            return 0
        released = await self._database.write(
            lambda tx: tx.rows(
                f"UPDATE jobs SET not_before = 0 WHERE id IN ({_DUE} LIMIT {_AT_ONCE}) "  # noqa: S608 - our own words
                "RETURNING id",
                {"now": now},
            )
        )
        return len(released)

    async def anything_queued(self) -> bool:
        found = await self._database.rows("SELECT 1 FROM jobs WHERE state = 'Queued' LIMIT 1")
        return bool(found)

    async def queued_services(self) -> list[str]:
        found = await self._database.rows(
            """
            WITH RECURSIVE line (service) AS (
                SELECT min(service) FROM jobs WHERE state = 'Queued'
                UNION ALL
                SELECT (SELECT min(service) FROM jobs
                        WHERE state = 'Queued' AND service > line.service)
                FROM line WHERE line.service IS NOT NULL
            )
            SELECT service FROM line WHERE service IS NOT NULL
            """
        )
        return [row["service"] for row in found]

    async def held(self) -> list[Held]:
        found = await self._database.rows(
            f"""
            SELECT service, user_id, agent, count(*) AS slots,
                   count(CASE WHEN state = 'Running' THEN 1 END) AS running FROM jobs
            WHERE {HELD} GROUP BY service, user_id, agent
            """  # noqa: S608 - our own words
        )
        return [
            Held(row["service"], row["user_id"], row["agent"] or "", row["slots"], row["running"])
            for row in found
        ]

    async def queued(self, service: str, user_id: str, limit: int) -> int:
        return await count_queued(self._database, service, user_id, limit)

    async def queued_before(self, job: Job) -> int:
        found = await self._database.rows(
            """
            SELECT count(*) AS count FROM (
                SELECT 1 FROM jobs WHERE state = 'Queued' AND not_before = 0
                AND service = :service AND user_id = :user_id AND id < :id LIMIT 1000
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
