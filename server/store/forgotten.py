"""What is kept of a user beside jobs and schedules: found, removed, or given another name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from server.store.sessions import NEXT_VERSION as NEXT_SESSION
from server.store.tokens import NEXT_VERSION as NEXT_TOKEN
from shared.clock import Micros
from shared.sql import Database, Transaction

_MOST: Final = 1_000
"""Rows in one transaction."""
_FOUND: Final[Mapping[str, str]] = {
    "jobs": "SELECT count(*) AS n FROM jobs WHERE user_id = :user",
    "schedules": "SELECT count(*) AS n FROM schedules WHERE user_id = :user",
    "deliveries": "SELECT count(*) AS n FROM deliveries WHERE user_id = :user",
    "keys": "SELECT count(*) AS n FROM idempotency_keys WHERE user_id = :user",
    "tokens": "SELECT count(*) AS n FROM tokens WHERE role = 'user' AND user_id = :user",
    "sessions": "SELECT count(*) AS n FROM sessions WHERE principal = :user",
    "audit": "SELECT count(*) AS n FROM audit WHERE principal = :user OR acts_as = :user",
    "uploaded": "SELECT count(*) AS n FROM uploaded WHERE user_id = :user",
}
_DELIVERIES: Final = "SELECT id FROM deliveries WHERE user_id = :user ORDER BY id LIMIT :most"
_AUDIT: Final = """
    SELECT seq FROM audit WHERE {column} = :user ORDER BY seq LIMIT :most
"""


class SqlForgotten:
    """``ports.ForgottenRecords`` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def found(self, user: str) -> dict[str, int]:
        counts = {}
        for name, sql in _FOUND.items():
            (row,) = await self._database.list_rows(sql, {"user": user})
            counts[name] = int(row["n"])
        return counts

    async def end_access(self, user: str, instead: str, at: Micros) -> dict[str, int]:
        values = {"user": user, "instead": instead, "at": at}

        async def change(tx: Transaction) -> dict[str, int]:
            version = int((await tx.rows(NEXT_TOKEN))[0]["value"])
            tokens = await tx.rows(
                """
                UPDATE tokens SET name = :instead, user_id = :instead, digest = '',
                    former_digest = NULL, last_used_from = NULL, version = :version,
                    revoked_at = coalesce(revoked_at, :at)
                WHERE role = 'user' AND user_id = :user RETURNING id
                """,
                values | {"version": version},
            )
            version = int((await tx.rows(NEXT_SESSION))[0]["value"])
            sessions = await tx.rows(
                """
                UPDATE sessions SET principal = :instead, browser = '', last_used_from = NULL,
                    version = :version, ended_at = coalesce(ended_at, :at)
                WHERE principal = :user RETURNING id
                """,
                values | {"version": version},
            )
            return {"tokens": len(tokens), "sessions": len(sessions)}

        return await self._database.write(change)

    async def schedules(self, user: str) -> list[int]:
        rows = await self._database.rows(
            "SELECT id FROM schedules WHERE user_id = :user ORDER BY id", {"user": user}
        )
        return [row["id"] for row in rows]

    async def jobs(self, user: str, below: int | None, most: int) -> list[int]:
        rows = await self._database.rows(
            """
            SELECT id FROM jobs WHERE user_id = :user AND parent_id IS NULL AND id < :below
            ORDER BY id DESC LIMIT :most
            """,
            {"user": user, "below": 2**62 if below is None else below, "most": most},
        )
        return [row["id"] for row in rows]

    async def remove_rest(self, user: str, instead: str) -> dict[str, int]:
        removed: dict[str, int] = {"deliveries": 0, "keys": 0, "uploaded": 0, "audit": 0}
        values: dict[str, Any] = {"user": user, "instead": instead, "most": _MOST}

        async def deliveries(tx: Transaction) -> int:
            ids = f"IN ({_DELIVERIES})"
            await tx.rows(f"DELETE FROM delivery_tries WHERE delivery_id {ids}", values)  # noqa: S608
            return len(await tx.rows(f"DELETE FROM deliveries WHERE id {ids} RETURNING id", values))  # noqa: S608

        while more := await self._database.write(deliveries):
            removed["deliveries"] += more

        async def rows(tx: Transaction) -> dict[str, int]:
            keys = await tx.rows(
                "DELETE FROM idempotency_keys WHERE user_id = :user RETURNING key", values
            )
            uploaded = await tx.rows(
                "DELETE FROM uploaded WHERE user_id = :user RETURNING day", values
            )
            await tx.rows("UPDATE services SET last_user = '' WHERE last_user = :user", values)
            for table in ("jobs", "schedules"):
                await tx.rows(
                    f"UPDATE {table} SET submitted_by = :instead WHERE submitted_by = :user",  # noqa: S608
                    values,
                )
            return {"keys": len(keys), "uploaded": len(uploaded)}

        removed |= await self._database.write(rows)
        for column, change in (
            ("principal", "principal = :instead, peer = ''"),
            ("acts_as", "acts_as = :instead"),
        ):
            which = _AUDIT.format(column=column)

            async def rename(tx: Transaction, change: str = change, which: str = which) -> int:
                renamed = await tx.rows(
                    f"UPDATE audit SET {change} WHERE seq IN ({which}) RETURNING seq",  # noqa: S608
                    values,
                )
                return len(renamed)

            while more := await self._database.write(rename):
                removed["audit"] += more
        return removed

    async def tokens_that_name(self, user: str) -> list[str]:
        rows = await self._database.rows(
            """
            SELECT id, name, users FROM tokens
            WHERE revoked_at IS NULL AND role <> 'user' AND (name = :user OR users LIKE :within)
            ORDER BY id
            """,
            {"user": user, "within": f'%"{user}"%'},
        )
        return [f"{row['name']} ({row['id']})" for row in rows]

    async def empty_log(self) -> bool:
        return await self._database.empty_log()
