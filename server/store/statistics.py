"""Buckets of what happened when.

A row has where the count of events stands. It is changed in the transaction that adds to the
buckets, and only if it is as it was when the events were read: nothing is counted twice or lost,
whatever dies in between, and whoever else counts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from server.domain.jobs import FIRST_EVENT
from server.domain.statistics import (
    ALL,
    EVER_S,
    OTHERS,
    RESOLUTIONS,
    Key,
    Observed,
    Resolution,
    Tree,
    add,
    sampled,
    tally,
)
from server.ports.statistics import Bucket, UnderWay
from server.store.statements import HELD
from shared.clock import SECOND, Micros
from shared.sql import Database, Row, Transaction
from shared.wire import JobState

_SLICE: Final = 5_000
"""Numbers of events that are looked at together."""
_MOST_SERVICES: Final = 100
"""Of one bucket, with a row of their own."""
_CURSOR: Final = "SELECT seq, changes FROM statistics_cursor"
_OBSERVED: Final = f"""
    SELECT events.at, events.before, events.state, events.reason, jobs.service,
           CASE WHEN jobs.parent_id IS NULL AND jobs.schedule_id IS NULL
               THEN jobs.bundle_size ELSE 0 END AS uploaded_bytes,
           attempts.waits_since, attempts.result_size, jobs.created_at,
           events.state = 'Running' AND NOT EXISTS (
               SELECT 1 FROM events AS earlier WHERE earlier.job_id = events.job_id
               AND earlier.seq < events.seq AND earlier.state = 'Running'
               AND earlier.before IS NOT NULL
           ) AS is_first_start,
           -- Of an attempt that was deferred before, its end was that: it has none here.
           (SELECT CASE WHEN min(earlier.before) IN ('Submitted', 'Unknown')
                        AND max(earlier.before) IN ('Submitted', 'Unknown')
                   THEN min(earlier.at) END
            FROM events AS earlier
            WHERE earlier.job_id = events.job_id AND earlier.seq < events.seq
            AND earlier.attempt = events.attempt AND earlier.state = 'Running'
            AND earlier.before IS NOT NULL AND events.before IS NOT NULL) AS started_at
    -- CROSS: the events are read, and the job of each looked up.
    FROM events CROSS JOIN jobs
    LEFT JOIN attempts ON attempts.job_id = events.job_id AND attempts.number = events.attempt
    WHERE jobs.id = events.job_id AND {{which}} AND (
        events.before IS NULL AND events.event = '{FIRST_EVENT}'
        OR events.before IS NOT NULL AND (
            events.state IN ('Completed', 'Failed', 'Cancelled')
            OR events.state = 'Queued' AND events.reason IS NOT NULL
            OR events.state = 'Running' AND events.before != 'Queued'
        )
    )
"""  # noqa: S608 - no user input
"""A send that failed gives no reason, and is no end of an attempt; its events may be folded."""
_QUEUED: Final = """
    WITH RECURSIVE line (service) AS (
        SELECT min(service) FROM jobs WHERE state = 'Queued'
        UNION ALL
        SELECT (SELECT min(service) FROM jobs WHERE state = 'Queued' AND service > line.service)
        FROM line WHERE line.service IS NOT NULL
    )
    SELECT service, (
        SELECT count(*) FROM jobs WHERE service = line.service AND state = 'Queued'
    ) AS jobs
    FROM line WHERE service IS NOT NULL
"""
"""It steps from service to service through an index, and counts in it."""
_WAITING_SINCE: Final = _QUEUED.replace(
    "SELECT count(*) FROM jobs WHERE service = line.service AND state = 'Queued'",
    """SELECT min(coalesce(waits_since, queued_at)) FROM jobs
        WHERE service = line.service AND state = 'Queued' AND hold IS NULL""",
).replace("AS jobs", "AS since")
_PUT: Final = """
    INSERT INTO statistics (resolution_s, at, service, document)
    VALUES (:resolution_s, :at, :service, :document)
    ON CONFLICT (resolution_s, at, service) DO UPDATE SET document = :document
"""


async def count_before_deletion(tx: Transaction, names: str, params: Mapping[str, Any]) -> None:
    """Count what was not counted yet of jobs that the same transaction is to delete.

    Args:
        names, params: placeholders and values of their ids.
    """
    which = f"events.job_id IN ({names}) AND events.seq > :_seq"
    (cursor,) = await tx.rows(_CURSOR)
    rows = await tx.rows(_OBSERVED.format(which=which), {**params, "_seq": cursor["seq"]})
    if rows:
        await _add(tx, tally(map(_observed, rows)))
        await tx.rows("UPDATE statistics_cursor SET changes = changes + 1")


class SqlStatistics:
    """``ports.StatisticsRecords`` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self) -> int:
        (newest,) = await self._database.rows("SELECT max(seq) AS seq FROM events")
        counted = 0
        while True:
            (cursor,) = await self._database.rows(_CURSOR)
            after, changes = cursor["seq"], cursor["changes"]
            up_to = min(after + _SLICE, newest["seq"] or 0)
            if up_to <= after:
                return counted
            rows = await self._database.list_rows(
                _OBSERVED.format(which="events.seq > :after AND events.seq <= :up_to"),
                {"after": after, "up_to": up_to},
            )
            found = tally(map(_observed, rows))
            if await self._count(found, (after, changes), up_to):
                counted += up_to - after

    async def _count(self, found: dict[Key, Tree], read_at: tuple[int, int], up_to: int) -> bool:
        """Whether nobody else has counted meanwhile; else nothing is added."""

        async def change(tx: Transaction) -> bool:
            (cursor,) = await tx.locked_rows(_CURSOR)
            if (cursor["seq"], cursor["changes"]) != read_at:
                return False
            await _add(tx, found)
            await tx.rows("UPDATE statistics_cursor SET seq = :seq", {"seq": up_to})
            return True

        return await self._database.write(change)

    async def queued(self) -> Mapping[str, int]:
        rows = await self._database.list_rows(_QUEUED)
        return {row["service"]: row["jobs"] for row in rows if row["jobs"]}

    async def totals(self) -> Mapping[str, Tree]:
        rows = await self._database.list_rows(
            "SELECT service, document FROM statistics WHERE resolution_s = :ever",
            {"ever": EVER_S},
        )
        return {row["service"]: json.loads(row["document"]) for row in rows}

    async def under_way(self) -> Sequence[UnderWay]:
        rows = await self._database.list_rows(
            f"SELECT service, state, count(*) AS jobs FROM jobs WHERE {HELD} "  # noqa: S608
            "GROUP BY service, state"
        )
        return [UnderWay(row["service"], JobState(row["state"]), row["jobs"]) for row in rows]

    async def waiting_since(self) -> Mapping[str, Micros]:
        rows = await self._database.list_rows(_WAITING_SINCE)
        return {row["service"]: row["since"] for row in rows if row["since"] is not None}

    async def database_bytes(self) -> int:
        return await self._database.size()

    async def sample(self, at: Micros, gauges: Mapping[str, Mapping[str, int]]) -> None:
        async def change(tx: Transaction) -> None:
            await tx.locked_rows(_CURSOR)
            await _add(tx, sampled(at, gauges))
            await tx.rows("UPDATE statistics_cursor SET sampled_at = :at", {"at": at})
            for resolution in RESOLUTIONS:
                before = at - resolution.kept_s * SECOND
                await tx.rows(
                    "DELETE FROM statistics WHERE resolution_s = :resolution AND at < :before",
                    {"resolution": resolution.seconds, "before": before},
                )

        await self._database.write(change)

    async def counted_until(self) -> Micros | None:
        rows = await self._database.rows("SELECT sampled_at FROM statistics_cursor")
        at: Micros | None = rows[0]["sampled_at"]
        return at

    async def services(self, resolution: Resolution, since: Micros) -> Sequence[str]:
        rows = await self._database.list_rows(
            """
            SELECT DISTINCT service FROM statistics
            WHERE resolution_s = :resolution AND at >= :since AND service != :all ORDER BY service
            """,
            {"resolution": resolution.seconds, "since": since, "all": ALL},
        )
        return [row["service"] for row in rows]

    async def buckets(
        self, resolution: Resolution, since: Micros, until: Micros, service: str
    ) -> Sequence[Bucket]:
        rows = await self._database.list_rows(
            """
            SELECT at, service, document FROM statistics
            WHERE resolution_s = :resolution AND at >= :since AND at < :until
            AND service IN (:all, :service) ORDER BY at, service
            """,
            {
                "resolution": resolution.seconds,
                "since": since,
                "until": until,
                "all": ALL,
                "service": service,
            },
        )
        samples: dict[Micros, int] = {}
        numbers: dict[Micros, Tree] = defaultdict(dict)
        for row in rows:
            document = json.loads(row["document"])
            if row["service"] == ALL:
                samples[row["at"]] = document.get("samples", 0)
            if row["service"] == service:
                numbers[row["at"]] = document
        return [Bucket(at, looks, numbers[at]) for at, looks in samples.items()]


async def _add(tx: Transaction, found: Mapping[Key, Tree]) -> None:
    """Add to the buckets; whoever does has locked the cursor, or is the only writer."""
    together: dict[tuple[int, Micros], dict[str, Tree]] = defaultdict(dict)
    for key, more in found.items():
        together[key.resolution_s, key.at][key.service] = more
    for (resolution_s, at), services in together.items():
        bucket = {"resolution_s": resolution_s, "at": at}
        rows = await tx.rows(
            "SELECT service, document FROM statistics "
            "WHERE resolution_s = :resolution_s AND at = :at",
            bucket,
        )
        known: dict[str, Tree] = {row["service"]: json.loads(row["document"]) for row in rows}
        changed = set()
        for service, more in sorted(services.items(), key=_busiest_first):
            full = len(known) > _MOST_SERVICES and service not in known
            name = OTHERS if full else service
            add(known.setdefault(name, {}), more)
            changed.add(name)
        for service in sorted(changed):
            document = json.dumps(known[service], separators=(",", ":"))
            await tx.rows(_PUT, bucket | {"service": service, "document": document})


def _busiest_first(one: tuple[str, Tree]) -> tuple[bool, int]:
    service, more = one
    return service != ALL, -more.get("uploaded", 0) - more.get("started", 0)


def _observed(row: Row) -> Observed:
    return Observed(
        row["service"],
        row["at"],
        None if row["before"] is None else JobState(row["before"]),
        JobState(row["state"]),
        row["reason"],
        row["uploaded_bytes"],
        row["waits_since"],
        row["created_at"] if row["is_first_start"] else None,
        row["started_at"],
        row["result_size"] or 0,
    )
