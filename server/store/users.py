"""Users by what they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from server.domain.allowances import day_of
from server.store.migrations import TOP
from server.store.queue import READY
from server.store.statements import chunks
from shared.clock import Micros
from shared.sql import Tx

# One step of an index for each user, however many jobs each has. A child's parent is its user's.
_USERS: Final = f"""
    WITH RECURSIVE found (user_id, n) AS (
        SELECT (SELECT min(user_id) FROM jobs WHERE {TOP} = 1 AND user_id >= :first), 1
        UNION ALL
        SELECT (SELECT min(user_id) FROM jobs WHERE {TOP} = 1 AND user_id > found.user_id), n + 1
        FROM found WHERE user_id IS NOT NULL AND n < :most
    )
    SELECT user_id FROM found WHERE user_id IS NOT NULL ORDER BY user_id
"""  # noqa: S608 - no user input
_NEXT: Final = f"""
    SELECT min(user_id) FROM jobs WHERE service = :service AND {READY} AND user_id > {{after}}
"""  # noqa: S608 - no user input
# Counted in the order of "jobs_queued": through another index, delayed jobs would be read, too.
_WAITING: Final = f"""
    WITH RECURSIVE found (user_id, n) AS (
        SELECT ({_NEXT.format(after="''")}), 1
        UNION ALL
        SELECT ({_NEXT.format(after="found.user_id")}), n + 1
        FROM found WHERE user_id IS NOT NULL AND n < :most
    )
    SELECT user_id, (
        SELECT count(*) FROM (
            SELECT 1 FROM jobs WHERE service = :service AND {READY} AND user_id = found.user_id
            ORDER BY priority DESC, id LIMIT :most_jobs
        ) AS some
    ) AS jobs
    FROM found WHERE user_id IS NOT NULL ORDER BY user_id
"""  # noqa: S608 - no user input
_STORED: Final = """
    SELECT user_id, sum(
        CASE WHEN parent_id IS NULL THEN bundle_size ELSE 0 END + results_size
    ) AS bytes
    FROM jobs WHERE user_id IN ({names}) AND bundle_file IS NOT NULL GROUP BY user_id
"""
_OF_SCHEDULES: Final = """
    SELECT user_id, sum(bundle_size) AS bytes FROM schedules WHERE user_id IN ({names})
    GROUP BY user_id
"""
_UPLOADED: Final = """
    SELECT user_id, bytes FROM uploaded WHERE day = :day AND user_id IN ({names})
"""


def named(tx: Tx, first: str, most: int) -> list[str]:
    """Who has jobs, by name, from ``first`` on. Its cost does not depend on how many jobs
    there are.
    """
    rows = tx.rows(_USERS, {"first": first, "most": most})
    return [row["user_id"] for row in rows]


def waiting(tx: Tx, service: str, most: int, most_jobs: int) -> dict[str, int]:
    """Who has jobs of the service that may be sent, by name, and how many each has; counts no
    further than ``most_jobs``.
    """
    params = {"service": service, "most": most, "most_jobs": most_jobs}
    rows = tx.rows(_WAITING, params)
    return {row["user_id"]: row["jobs"] for row in rows}


def stored(tx: Tx, *users: str) -> Counter[str]:
    """Bytes that bundles, of jobs and of schedules, and results of each user take."""
    return _bytes(tx, users, _STORED) + _bytes(tx, users, _OF_SCHEDULES)


def uploaded(tx: Tx, at: Micros, *users: str) -> Counter[str]:
    """Bytes of bundles that were uploaded for each user on the day of ``at``."""
    return _bytes(tx, users, _UPLOADED, day=day_of(at))


def _bytes(tx: Tx, users: Sequence[str], sql: str, **more: int) -> Counter[str]:
    found = Counter[str]()
    for names, params in chunks(users):
        rows = tx.rows(sql.format(names=names), params | more)
        found |= Counter({row["user_id"]: row["bytes"] for row in rows})
    return found


def count_upload(tx: Tx, user_id: str, size: int, at: Micros) -> None:
    """Count an upload."""
    tx.rows(
        """
        INSERT INTO uploaded (user_id, day, bytes) VALUES (:user_id, :day, :bytes)
        ON CONFLICT (user_id, day) DO UPDATE SET bytes = uploaded.bytes + :bytes
        """,
        {"user_id": user_id, "day": day_of(at), "bytes": size},
    )
