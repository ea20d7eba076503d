"""The rows of browsers' sessions. Their texts are not among them, only the digests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from server.domain.jobs import UsedTicket
from server.domain.sessions import SessionRecord
from server.store.tickets import use_ticket
from shared.clock import Micros
from shared.sql import Database, Row, Transaction

_COLUMNS: Final = (
    "id",
    "digest",
    "principal",
    "token_id",
    "token_digest",
    "created_at",
    "expires_at",
    "browser",
    "ended_at",
    "last_used_at",
    "last_used_from",
    "version",
)
_INSERT: Final = (
    f"INSERT INTO sessions ({', '.join(_COLUMNS)}) "  # noqa: S608 - names of columns
    f"VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
)
NEXT_VERSION: Final = """
    INSERT INTO meta (key, value) VALUES ('sessions_version', '1')
    ON CONFLICT (key) DO UPDATE
    SET value = CAST(CAST(meta.value AS INTEGER) + 1 AS TEXT)
    RETURNING value
"""
_LIVE: Final = """
    SELECT id FROM sessions
    WHERE principal = :principal AND ended_at IS NULL AND expires_at > :now
    ORDER BY created_at DESC, id
"""
_END: Final = """
    UPDATE sessions SET ended_at = :at, version = :version
    WHERE id = :id AND ended_at IS NULL RETURNING id
"""
_USED: Final = """
    UPDATE sessions SET last_used_at = :at, last_used_from = :peer
    WHERE id = :id AND (last_used_at IS NULL OR last_used_at < :at)
"""


class SqlSessions:
    """``ports.SessionRecords`` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def changed(self, after: int) -> Sequence[SessionRecord]:
        sql = "SELECT * FROM sessions WHERE version > :after ORDER BY version, id"
        return [_record(row) for row in await self._database.rows(sql, {"after": after})]

    async def insert(self, new: SessionRecord, most: int, once: UsedTicket | None) -> bool:
        async def change(tx: Transaction) -> bool:
            version = await _next_version(tx)
            if once is not None and not await use_ticket(tx, once):
                return False
            others = await tx.rows(_LIVE, {"principal": new.principal, "now": new.created_at})
            for one in others[most - 1 :]:
                await tx.rows(_END, {"id": one["id"], "at": new.created_at, "version": version})
            record = replace(new, version=version)
            await tx.rows(_INSERT, {name: getattr(record, name) for name in _COLUMNS})
            return True

        return await self._database.write(change)

    async def end(self, ids: Collection[str], at: Micros) -> int:
        async def change(tx: Transaction) -> int:
            version, ended = await _next_version(tx), 0
            for one in ids:
                ended += len(await tx.rows(_END, {"id": one, "at": at, "version": version}))
            return ended

        return await self._database.write(change)

    async def used(self, uses: Mapping[str, tuple[Micros, str]]) -> None:
        async def change(tx: Transaction) -> None:
            for one, (at, peer) in uses.items():
                await tx.rows(_USED, {"id": one, "at": at, "peer": peer})

        await self._database.write(change)

    async def remove(self, ids: Collection[str]) -> None:
        async def change(tx: Transaction) -> None:
            for one in ids:
                await tx.rows("DELETE FROM sessions WHERE id = :id", {"id": one})

        await self._database.write(change)


async def _next_version(tx: Transaction) -> int:
    """The number of this change; whoever changes sessions waits here for the one before."""
    return int((await tx.rows(NEXT_VERSION))[0]["value"])


def _record(row: Row) -> SessionRecord:
    values: dict[str, Any] = {name: row[name] for name in _COLUMNS}
    return SessionRecord(**values)
