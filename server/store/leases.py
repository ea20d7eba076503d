"""Leases: rows that say who holds what, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from server.domain.leases import LENGTH_S, Lease, of_server
from shared.clock import SECOND
from shared.sql import Database, Row, Transaction

_UNTIL: Final = f"now_us() + {round(LENGTH_S * SECOND)}"
_ACQUIRE: Final = f"""
    INSERT INTO leases (name, owner, token, until)
    VALUES (:name, :owner, (
        SELECT CASE WHEN max(token) > now_us() / {SECOND} THEN max(token)
                    ELSE now_us() / {SECOND} END FROM leases
    ), {_UNTIL})
    ON CONFLICT (name) DO UPDATE SET
        owner = excluded.owner,
        until = excluded.until,
        token = CASE WHEN leases.owner = excluded.owner THEN leases.token
                     WHEN leases.token >= excluded.token THEN leases.token + 1
                     ELSE excluded.token END
    WHERE leases.owner = excluded.owner OR leases.until <= now_us() OR :alone
    RETURNING name, owner, token
"""  # noqa: S608 - no user input
"""The token of a new owner is the time in seconds, and at least one more than the last token. So a
database that was restored from a copy does not use tokens again that agents have seen."""
_SERVERS: Final = "substr(name, 1, 7) = 'server:'"


HELD: Final = """
    EXISTS (SELECT 1 FROM leases WHERE name = :_lease AND owner = :_owner AND token = :_token)
"""
"""A condition of the statement that writes. A check before the write would not do: a server that is
paused between the two would overwrite what its successor did."""


def held(lease: Lease) -> dict[str, Any]:
    """The parameters of :data:`HELD`."""
    return {"_lease": lease.name, "_owner": lease.owner, "_token": lease.token}


async def is_held(tx: Transaction, lease: Lease) -> bool:
    """Whether it is still the one that holds."""
    return bool(await tx.rows(f"SELECT 1 WHERE {HELD}", held(lease)))


class SqlLeases:
    """``ports.Leases`` over a database."""

    def __init__(self, database: Database, owner: str) -> None:
        self._database, self.owner = database, owner
        self.own: Lease | None = None

    async def acquire(self, names: Sequence[str], *, alone: bool = False) -> list[Lease]:
        async def change(tx: Transaction) -> list[Row]:
            rows: list[Row] = []
            if alone:
                ended = f"DELETE FROM leases WHERE {_SERVERS} AND owner != :owner"  # noqa: S608
                await tx.rows(ended, {"owner": self.owner})
            for name in names:
                values = {"name": name, "owner": self.owner, "alone": alone}
                rows += await tx.rows(_ACQUIRE, values)
            return rows

        return self._note([_lease(row) for row in await self._database.write(change)])

    def _note(self, leases: list[Lease]) -> list[Lease]:
        own = of_server(self.owner)
        self.own = next((lease for lease in leases if lease.name == own), self.own)
        return leases

    async def renew(self) -> list[Lease]:
        rows = await self._database.write(
            lambda tx: tx.rows(
                f"UPDATE leases SET until = {_UNTIL} WHERE owner = :owner "  # noqa: S608 - no user input
                "RETURNING name, owner, token",
                {"owner": self.owner},
            )
        )
        return [_lease(row) for row in rows]

    async def release(self) -> None:
        async def change(tx: Transaction) -> None:
            mine = {"owner": self.owner}
            # Rows of agents stay: their tokens must not start over.
            await tx.rows(f"DELETE FROM leases WHERE owner = :owner AND {_SERVERS}", mine)  # noqa: S608
            await tx.rows("UPDATE leases SET until = 0 WHERE owner = :owner", mine)

        await self._database.write(change)

    async def give_back(self, names: Sequence[str]) -> None:
        async def change(tx: Transaction) -> None:
            for name in names:  # the rows stay: their tokens must not start over
                await tx.rows(
                    "UPDATE leases SET owner = '', until = 0 WHERE name = :name AND owner = :owner",
                    {"name": name, "owner": self.owner},
                )

        if names:
            await self._database.write(change)

    async def running_servers(self) -> set[str]:
        async def change(tx: Transaction) -> Sequence[Row]:
            # Those of agents stay as rows, without an owner: their tokens must not start over.
            await tx.rows("UPDATE leases SET owner = '' WHERE until <= now_us()")
            await tx.rows(f"DELETE FROM leases WHERE {_SERVERS} AND owner = ''")  # noqa: S608
            return await tx.rows(f"SELECT owner FROM leases WHERE {_SERVERS}")  # noqa: S608

        return {row["owner"] for row in await self._database.write(change)}


def _lease(row: Row) -> Lease:
    return Lease(row["name"], row["owner"], row["token"])
