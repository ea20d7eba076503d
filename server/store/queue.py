"""The queue: who waits, and for how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from server.domain.jobs import Job
from server.store import records, totals
from server.store.statements import HELD, WAITS_SINCE
from shared.clock import Micros
from shared.sql import AMONG, Tx, among

READY: Final = "state = 'Queued' AND not_before = 0 AND hold IS NULL AND deferred = 0"
"""What may be claimed now, in the words of the index ``jobs_queued``."""
DEFERRED: Final = "deferred = 1 AND state IN ('Queued', 'Running')"
"""Parents that wait for their children, or to have them made, in the words of ``jobs_deferred``."""
_AT_ONCE: Final = 1_000
_DEADLINE: Final = f"({WAITS_SINCE} + queue_timeout_s * 1000000.0)"
"""As the index ``jobs_by_deadline`` has it."""


def count_queued(tx: Tx, service: str, user_id: str) -> int:
    """Jobs of the user that wait, delayed ones too, and children that are still to be made; in a
    transaction that writes.
    """
    return totals.all_of(tx).queued[service, user_id] + unmade(tx, user_id)[service]


def unmade(tx: Tx, user_id: str) -> Counter[str]:
    """Service -> children of the user's that are still to be made."""
    rows = tx.rows(
        f"""
        SELECT service, sum(total - made) AS count
        FROM jobs JOIN batches ON batches.parent_id = jobs.id
        WHERE {DEFERRED} AND user_id = :user_id GROUP BY service
        """,  # noqa: S608 - no user input
        {"user_id": user_id},
    )
    return Counter({row["service"]: row["count"] for row in rows})


def waits_since(tx: Tx, services: Collection[str]) -> dict[str, Micros]:
    """Service -> since when the queued job waits that waits longest, children that are held back
    left out; those that have none are missing.
    """
    since = f"""
        SELECT {WAITS_SINCE} AS since FROM jobs
        WHERE state = 'Queued' AND hold IS NULL AND service = :service
        ORDER BY {WAITS_SINCE} LIMIT 1
    """  # noqa: S608 - no user input
    rows = {service: tx.rows(since, {"service": service}) for service in services}
    return {service: found[0]["since"] for service, found in rows.items() if found}


def next_due(tx: Tx) -> Micros | None:
    """When the first of the delayed jobs may be sent."""
    first = "SELECT min(not_before) AS at FROM jobs WHERE state = 'Queued' AND not_before > 0"
    at = tx.rows(first)[0]["at"]
    return None if at is None else int(at)


def release_delayed(tx: Tx, now: Micros) -> int:
    """Let the jobs be sent whose delay is over; how many, some hundreds at a time.

    Until then :func:`server.store.claims.claim` does not see them, and they cost it nothing.
    """
    sql = """
        UPDATE jobs SET not_before = 0 WHERE id IN (
            SELECT id FROM jobs WHERE state = 'Queued' AND not_before > 0 AND not_before <= :now
            LIMIT :most
        ) RETURNING id
    """
    return len(tx.rows(sql, {"now": now, "most": _AT_ONCE}))


def release_ahead(tx: Tx, now: Micros) -> None:
    """At a start: let the jobs be sent that wait for a time which means nothing by now, because
    they were queued again by a clock that was ahead of this one, as that of a former server. A job
    that was not sent before has the time that its upload named.
    """
    sql = """
        UPDATE jobs SET not_before = 0
        WHERE state = 'Queued' AND not_before > 0 AND queued_at > :now AND attempt > 0
    """
    tx.rows(sql, {"now": now})


def oldest_held(tx: Tx, agents: Sequence[str], most: int) -> dict[str, list[Job]]:
    # The numbers alone are in the index of what is held: few rows are read, however many there are.
    sql = f"""
        SELECT * FROM jobs WHERE id IN (
            SELECT id FROM jobs WHERE {HELD} AND agent = :agent ORDER BY id + 0 LIMIT :most
        ) ORDER BY id
    """  # noqa: S608 - no user input
    return {name: records.jobs(tx, sql, {"agent": name, "most": most}) for name in agents}


def queued_before(tx: Tx, ids: Sequence[int], most: int) -> dict[int, int]:
    """For each of the jobs: how many of its user's jobs of its service may be sent before it;
    counts no further than ``most``.
    """
    rows = tx.rows(
        f"""
        SELECT waiting.id AS id, (
            SELECT count(*) FROM (
                SELECT 1 FROM jobs WHERE {READY} AND service = waiting.service
                AND user_id = waiting.user_id AND priority > waiting.priority
                UNION ALL
                SELECT 1 FROM jobs WHERE {READY} AND service = waiting.service
                AND user_id = waiting.user_id AND priority = waiting.priority
                AND id < waiting.id
                LIMIT :most
            )
        ) AS count
        FROM jobs AS waiting WHERE waiting.id {AMONG}
        """,  # noqa: S608 - no user input
        among(ids) | {"most": most},
    )
    return {row["id"]: row["count"] for row in rows}


def overdue(
    tx: Tx, service: str, queued_before: Micros | None, now: Micros, limit: int
) -> list[Job]:
    """Queued jobs whose queue timeout is over, and that nothing holds back.

    Args:
        queued_before: those that have waited since then; None: only those with a queue timeout
            of their own.
        limit: of both kinds.
    """
    params = {"service": service, "before": queued_before, "now": now, "limit": limit}
    found: list[Job] = []
    for only_if, by in (
        (f"{WAITS_SINCE} <= :before", WAITS_SINCE),
        (f"queue_timeout_s > 0 AND {_DEADLINE} <= :now", _DEADLINE),
    ):
        found += records.jobs(
            tx,
            f"""
            SELECT * FROM jobs WHERE state = 'Queued' AND hold IS NULL AND service = :service
            AND {only_if} ORDER BY {by} LIMIT :limit
            """,  # noqa: S608 - no user input
            params,
        )
    return list({job.id: job for job in found}.values())


def of_service(tx: Tx, service: str, limit: int) -> list[Job]:
    """Queued jobs, whatever holds them back."""
    sql = "SELECT * FROM jobs WHERE state = 'Queued' AND service = :service LIMIT :limit"
    return records.jobs(tx, sql, {"service": service, "limit": limit})
