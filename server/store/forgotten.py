"""What is kept of a user beside jobs and schedules: found, removed, or given another name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from server.store.tokens import NEXT_VERSION
from shared.clock import Micros
from shared.sql import Database, Transaction

_AUDIT: Final = """
    UPDATE audit SET {} WHERE seq IN (
        SELECT seq FROM audit WHERE {} = :user ORDER BY seq LIMIT 1000
    )
"""
_KINDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "jobs": ("jobs WHERE user_id = :user", ()),
    "schedules": ("schedules WHERE user_id = :user", ()),
    "tokens": ("tokens WHERE role = 'user' AND user_id = :user", ()),
    "deliveries": (
        "deliveries WHERE user_id = :user",
        (
            """
            DELETE FROM deliveries WHERE id IN (
                SELECT id FROM deliveries WHERE user_id = :user ORDER BY id LIMIT 1000
            )
            """,
        ),
    ),
    "keys": (
        "idempotency_keys WHERE user_id = :user",
        ("DELETE FROM idempotency_keys WHERE user_id = :user",),
    ),
    "uploaded": ("uploaded WHERE user_id = :user", ("DELETE FROM uploaded WHERE user_id = :user",)),
    "audit": (
        "audit WHERE principal = :user OR acts_as = :user",
        (
            _AUDIT.format("principal = :instead, peer = ''", "principal"),
            _AUDIT.format("acts_as = :instead", "acts_as"),
        ),
    ),
}
"""Kind -> the rows, and the statements that remove some of them, or give them another name; none:
the stage does it, or :meth:`SqlForgotten.end_access`."""
_ALSO: Final = (
    "UPDATE services SET last_user = '' WHERE last_user = :user",
    "UPDATE jobs SET submitted_by = :instead WHERE submitted_by = :user",
    "UPDATE schedules SET submitted_by = :instead WHERE submitted_by = :user",
)


class SqlForgotten:
    """Finds what there is of a user, and removes it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def found(self, user: str) -> Counter[str]:
        """Kind -> rows that there are."""
        counts = Counter[str]()
        for kind, (where, _) in _KINDS.items():
            sql = f"SELECT count(*) AS n FROM {where}"  # noqa: S608
            (row,) = await self._database.list_rows(sql, {"user": user})
            counts[kind] = int(row["n"])
        return counts

    async def end_access(self, user: str, instead: str, at: Micros) -> None:
        """End the user's tokens, and give them another name."""
        values = {"user": user, "instead": instead, "at": at}

        async def change(tx: Transaction) -> None:
            version = int((await tx.rows(NEXT_VERSION))[0]["value"])
            await tx.rows(
                """
                UPDATE tokens SET name = :instead, user_id = :instead, digest = '',
                    former_digest = NULL, last_used_from = NULL, version = :version,
                    revoked_at = coalesce(revoked_at, :at)
                WHERE role = 'user' AND user_id = :user
                """,
                values | {"version": version},
            )

        await self._database.write(change)

    async def schedules(self, user: str) -> list[int]:
        rows = await self._database.rows(
            "SELECT id FROM schedules WHERE user_id = :user ORDER BY id", {"user": user}
        )
        return [row["id"] for row in rows]

    async def jobs(self, user: str, below: int | None, most: int) -> list[int]:
        """Numbers of its jobs that are no children, the newest first, below a number."""
        rows = await self._database.rows(
            """
            SELECT id FROM jobs WHERE user_id = :user AND parent_id IS NULL AND id < :below
            ORDER BY id DESC LIMIT :most
            """,
            {"user": user, "below": 2**62 if below is None else below, "most": most},
        )
        return [row["id"] for row in rows]

    async def remove_rest(self, user: str, instead: str) -> None:
        """Remove the rest of its rows, some in a transaction, or give them another name."""
        values = {"user": user, "instead": instead}

        async def run(statements: tuple[str, ...]) -> None:
            async def change(tx: Transaction) -> None:
                for sql in statements:
                    await tx.rows(sql, values)

            await self._database.write(change)

        await run(_ALSO)
        for where, statements in _KINDS.values():
            sql = f"SELECT 1 FROM {where} LIMIT 1"  # noqa: S608
            while statements and await self._database.rows(sql, {"user": user}):
                await run(statements)

    async def tokens_that_name(self, user: str) -> list[str]:
        """Names and ids of other principals' live tokens that name the user."""
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
        """Cut off the database's log of changes. False: somebody reads, so part of it is there."""
        return await self._database.empty_log()
