"""What is kept of a user beside jobs and schedules: found, removed, or given another name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from server.store import pages
from server.store.listed import Filter
from server.store.migrations import TOP
from shared.sql import Tx

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


_KINDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "jobs": (f"jobs WHERE {TOP} IN (0, 1) AND user_id = :user", ()),
    "schedules": ("schedules WHERE user_id = :user", ()),
    "tokens": ("tokens WHERE role = 'user' AND user_id = :user", ()),
    "deliveries": _removed("deliveries", "id"),
    "keys": _removed("idempotency_keys", "key"),
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


def jobs(tx: Tx, user: str, below: int | None, most: int) -> list[int]:
    """Numbers of its jobs that are no children, the newest first, below a number."""
    return pages.ids(tx, Filter(user_id=user, top_level=True), below, most)[0]


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
