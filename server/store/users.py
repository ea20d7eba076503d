"""Users by what they have; and what is kept of one, found, removed or given another name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from server.domain.allowances import day_of
from server.store.migrations import TOP
from server.store.queue import READY
from shared.clock import Micros
from shared.sql import AMONG, Tx, among

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
_STORED: Final = f"""
    SELECT user_id, sum(
        CASE WHEN parent_id IS NULL THEN bundle_size ELSE 0 END + results_size
    ) AS bytes
    FROM jobs WHERE user_id {AMONG} AND bundle_file IS NOT NULL GROUP BY user_id
"""  # noqa: S608 - no user input
_OF_SCHEDULES: Final = f"""
    SELECT user_id, sum(bundle_size) AS bytes FROM schedules WHERE user_id {AMONG}
    GROUP BY user_id
"""  # noqa: S608 - no user input
_UPLOADED: Final = f"""
    SELECT user_id, bytes FROM uploaded WHERE day = :day AND user_id {AMONG}
"""  # noqa: S608 - no user input


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
    rows = tx.rows(sql, among(users) | more)
    return Counter({row["user_id"]: row["bytes"] for row in rows})


def count_upload(tx: Tx, user_id: str, size: int, at: Micros) -> None:
    tx.rows(
        """
        INSERT INTO uploaded (user_id, day, bytes) VALUES (:user_id, :day, :bytes)
        ON CONFLICT (user_id, day) DO UPDATE SET bytes = uploaded.bytes + :bytes
        """,
        {"user_id": user_id, "day": day_of(at), "bytes": size},
    )


_AUDIT: Final = """
    UPDATE audit SET {} WHERE seq IN (
        SELECT seq FROM audit WHERE {} = :user ORDER BY seq LIMIT 1000
    )
"""


def _removed(table: str, key: str) -> tuple[str, tuple[str, ...]]:
    """The user's rows of a table, some of which are removed at a time. ``key``: a column of its
    primary key, apart from the user.
    """
    where = f"{table} WHERE user_id = :user"
    some = f"SELECT {key} FROM {where} ORDER BY {key} LIMIT 1000"  # noqa: S608 - no user input
    return where, (f"DELETE FROM {where} AND {key} IN ({some})",)  # noqa: S608 - no user input


_KEYED: Final = "user_id = :user AND idempotency_key IS NOT NULL"
_KINDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "jobs": (f"jobs WHERE {TOP} IN (0, 1) AND user_id = :user", ()),
    "schedules": ("schedules WHERE user_id = :user", ()),
    "tokens": ("tokens WHERE role = 'user' AND user_id = :user", ()),
    "deliveries": _removed("deliveries", "id"),
    "keys": (f"jobs WHERE {_KEYED}", (f"UPDATE jobs SET idempotency_key = NULL WHERE {_KEYED}",)),  # noqa: S608
    "uploaded": _removed("uploaded", "day"),
    "daily_usage": _removed("daily_usage", "day"),
    "audit": (
        "audit WHERE principal = :user OR acts_as = :user",
        (
            _AUDIT.format("principal = :instead, peer = ''", "principal"),
            _AUDIT.format("acts_as = :instead", "acts_as"),
        ),
    ),
}
"""Kind -> the rows, and the statements that remove some of them, or give them another name; none:
the stage does it, or ``tokens.end_of_user``."""
_ALSO: Final = (
    "UPDATE services SET last_user = '' WHERE last_user = :user",
    "UPDATE jobs SET submitted_by = :instead WHERE submitted_by = :user",
    "UPDATE schedules SET submitted_by = :instead WHERE submitted_by = :user",
    "DELETE FROM meta WHERE key = 'webhooks of ' || :user",
)


def found(tx: Tx, user: str) -> Counter[str]:
    """Kind -> rows that there are of the user."""
    counts = Counter[str]()
    for kind, (where, _) in _KINDS.items():
        (row,) = tx.rows(f"SELECT count(*) AS n FROM {where}", {"user": user})  # noqa: S608
        counts[kind] = int(row["n"])
    return counts


def schedules(tx: Tx, user: str) -> list[int]:
    rows = tx.rows("SELECT id FROM schedules WHERE user_id = :user ORDER BY id", {"user": user})
    return [row["id"] for row in rows]


def rename(tx: Tx, user: str, instead: str) -> None:
    """Where rows that stay name the user."""
    for sql in _ALSO:
        tx.rows(sql, {"user": user, "instead": instead})


def remove_some(tx: Tx, user: str, instead: str) -> bool:
    """Remove some of the rest of its rows, or give them another name. False: there are none."""
    for where, statements in _KINDS.values():
        sql = f"SELECT 1 FROM {where} LIMIT 1"  # noqa: S608
        if statements and tx.rows(sql, {"user": user}):
            for statement in statements:
                tx.rows(statement, {"user": user, "instead": instead})
            return True
    return False


def tokens_that_name(tx: Tx, user: str) -> list[str]:
    """Names and ids of other principals' live tokens that name the user."""
    rows = tx.rows(
        """
        SELECT id, name, users FROM tokens
        WHERE revoked_at IS NULL AND role <> 'user' AND (
            name = :user OR EXISTS (SELECT 1 FROM json_each(users) WHERE value = :user)
        )
        ORDER BY id
        """,
        {"user": user},
    )
    return [f"{row['name']} ({row['id']})" for row in rows]
