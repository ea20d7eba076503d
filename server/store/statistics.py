"""Buckets of what happened when, and how many jobs there are now."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from server.domain.statistics import Tree, add
from server.store.statements import HELD, chunks
from shared.clock import Micros
from shared.sql import Tx
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


def add_counted(tx: Tx, counted: Mapping[tuple[Micros, str], Tree], before: Micros) -> None:
    """Add to the buckets, one for each begin and service, and delete those that began before
    ``before``.
    """
    for (at, service), more in counted.items():
        key = {"at": at, "service": service}
        rows = tx.rows("SELECT document FROM statistics WHERE at = :at AND service = :service", key)
        numbers: Tree = json.loads(rows[0]["document"]) if rows else {}
        add(numbers, more)
        document = json.dumps(numbers, separators=(",", ":"))
        tx.rows(_PUT, key | {"document": document})
    tx.rows("DELETE FROM statistics WHERE at < :before", {"before": before})


def buckets(tx: Tx, since: Micros, services: Collection[str]) -> list[tuple[Micros, str, Tree]]:
    """Begin, service and numbers of those that begin since then."""
    ((names, params),) = chunks(list(services))
    rows = tx.rows(
        f"""
        SELECT at, service, document FROM statistics
        WHERE at >= :since AND service IN ({names})
        """,  # noqa: S608 - placeholders
        params | {"since": since},
    )
    return [(row["at"], row["service"], json.loads(row["document"])) for row in rows]


def queued(tx: Tx) -> dict[str, tuple[int, Micros | None]]:
    """Service -> its queued jobs, and since when the one waits that waits longest, children
    that are held back left out.
    """
    return {row["service"]: (row["jobs"], row["since"]) for row in tx.rows(_QUEUED)}


def under_way(tx: Tx) -> dict[tuple[str, JobState], int]:
    """Service and state -> jobs that hold a slot."""
    rows = tx.rows(
        f"SELECT service, state, count(*) AS jobs FROM jobs WHERE {HELD} "  # noqa: S608
        "GROUP BY service, state"
    )
    return {(row["service"], JobState(row["state"])): row["jobs"] for row in rows}
