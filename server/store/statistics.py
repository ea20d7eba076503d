"""Buckets of what happened when, and how many jobs there are now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from typing import Final

from server.domain.statistics import Tree, add
from server.store.statements import HELD, batches
from shared.clock import Micros
from shared.sql import Database, Transaction
from shared.wire import JobState

_PUT: Final = """
    INSERT INTO statistics (at, service, document) VALUES (:at, :service, :document)
    ON CONFLICT (at, service) DO UPDATE SET document = :document
"""
_QUEUED: Final = """
    WITH RECURSIVE line (service) AS (
        SELECT min(service) FROM jobs WHERE state = 'Queued'
        UNION ALL
        SELECT (SELECT min(service) FROM jobs WHERE state = 'Queued' AND service > line.service)
        FROM line WHERE line.service IS NOT NULL
    )
    SELECT service, (
        SELECT count(*) FROM jobs WHERE service = line.service AND state = 'Queued'
    ) AS jobs, (
        SELECT min(coalesce(waits_since, queued_at)) FROM jobs
        WHERE service = line.service AND state = 'Queued' AND hold IS NULL
    ) AS since
    FROM line WHERE service IS NOT NULL
"""
"""It steps from service to service through an index, and counts in it."""


class SqlStatistics:
    """The buckets in a database: one for each begin and service."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, counted: Mapping[tuple[Micros, str], Tree], before: Micros) -> None:
        """Add to the buckets, and delete those that began before ``before``."""

        async def change(tx: Transaction) -> None:
            for (at, service), more in counted.items():
                key = {"at": at, "service": service}
                rows = await tx.rows(
                    "SELECT document FROM statistics WHERE at = :at AND service = :service", key
                )
                numbers: Tree = json.loads(rows[0]["document"]) if rows else {}
                add(numbers, more)
                document = json.dumps(numbers, separators=(",", ":"))
                await tx.rows(_PUT, key | {"document": document})
            await tx.rows("DELETE FROM statistics WHERE at < :before", {"before": before})

        await self._database.write(change)

    async def read(
        self, since: Micros, services: Collection[str]
    ) -> list[tuple[Micros, str, Tree]]:
        """Begin, service and numbers of those that begin since then."""
        ((names, params),) = batches(list(services))
        rows = await self._database.list_rows(
            f"""
            SELECT at, service, document FROM statistics
            WHERE at >= :since AND service IN ({names})
            """,  # noqa: S608 - placeholders
            params | {"since": since},
        )

        def parsed() -> list[tuple[Micros, str, Tree]]:
            return [(row["at"], row["service"], json.loads(row["document"])) for row in rows]

        return await asyncio.to_thread(parsed)

    async def queued(self) -> dict[str, tuple[int, Micros | None]]:
        """Service -> its queued jobs, and since when the one waits that waits longest, children
        that are held back left out.
        """
        rows = await self._database.list_rows(_QUEUED)
        return {row["service"]: (row["jobs"], row["since"]) for row in rows}

    async def under_way(self) -> dict[tuple[str, JobState], int]:
        """Service and state -> jobs that hold a slot."""
        rows = await self._database.list_rows(
            f"SELECT service, state, count(*) AS jobs FROM jobs WHERE {HELD} "  # noqa: S608
            "GROUP BY service, state"
        )
        return {(row["service"], JobState(row["state"])): row["jobs"] for row in rows}
