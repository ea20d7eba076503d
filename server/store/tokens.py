"""The rows of API tokens. Secrets are not among them, only their digests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from server.domain.tokens import TokenRecord
from shared.clock import Micros
from shared.principals import Role, Scope
from shared.sql import Database, Row, Transaction

_COLUMNS: Final = (
    "id",
    "digest",
    "name",
    "role",
    "user_id",
    "users",
    "scopes",
    "created_at",
    "created_by",
    "expires_at",
    "revoked_at",
    "former_digest",
    "former_until",
    "version",
)
_SET: Final = ", ".join(f"{name} = :{name}" for name in _COLUMNS if name != "id")
_INSERT: Final = (
    f"INSERT INTO tokens ({', '.join(_COLUMNS)}) "  # noqa: S608 - names of columns
    f"VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
)
_UPDATE: Final = f"UPDATE tokens SET {_SET} WHERE id = :id"  # noqa: S608 - names of columns
NEXT_VERSION: Final = """
    INSERT INTO meta (key, value) VALUES ('tokens_version', '1')
    ON CONFLICT (key) DO UPDATE
    SET value = CAST(CAST(meta.value AS INTEGER) + 1 AS TEXT)
    RETURNING value
"""
_USED: Final = """
    UPDATE tokens SET last_used_at = :at, last_used_from = :peer
    WHERE id = :id AND (last_used_at IS NULL OR last_used_at < :at)
"""


@dataclass(frozen=True, slots=True)
class TokenFilter:
    """Which tokens a list has; None: any."""

    name: str | None = None
    role: Role | None = None
    user_id: str | None = None
    live_at: Micros | None = None
    """Only those that were neither revoked nor expired then."""
    id: str | None = None


class SqlTokens:
    """A row for each token that was ever made."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def changed(self, after: int) -> Sequence[TokenRecord]:
        """Those whose version is higher, in the order of their versions."""
        sql = "SELECT * FROM tokens WHERE version > :after ORDER BY version"
        return [_record(row) for row in await self._database.rows(sql, {"after": after})]

    async def page(
        self, which: TokenFilter, limit: int, before: tuple[Micros, str] | None
    ) -> Sequence[TokenRecord]:
        """Tokens, the newest first.

        Args:
            before: time and id of the last one of the page before.
        """
        wanted = {"name": which.name, "role": which.role, "user_id": which.user_id, "id": which.id}
        params: dict[str, Any] = {key: value for key, value in wanted.items() if value is not None}
        where = [f"{column} = :{column}" for column in params]
        if which.live_at is not None:
            params["now"] = which.live_at
            where.append("revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now)")
        if before is not None:
            params["time"], params["last"] = before
            where.append("(created_at < :time OR (created_at = :time AND id > :last))")
        sql = (
            f"SELECT * FROM tokens WHERE {' AND '.join(where) or 'TRUE'} "  # noqa: S608 - columns
            "ORDER BY created_at DESC, id LIMIT :limit"
        )
        rows = await self._database.list_rows(sql, params | {"limit": limit})
        return [_record(row) for row in rows]

    async def get(self, token_id: str) -> TokenRecord | None:
        rows = await self._database.rows("SELECT * FROM tokens WHERE id = :id", {"id": token_id})
        return _record(rows[0]) if rows else None

    async def insert(
        self, new: TokenRecord, check: Callable[[Sequence[TokenRecord]], None]
    ) -> None:
        """Keep a token.

        Args:
            check: called with all tokens of the same name, in the transaction; what it raises
                undoes that.
        """

        async def change(tx: Transaction) -> None:
            version = await _next_version(tx)
            rows = await tx.rows("SELECT * FROM tokens WHERE name = :name", {"name": new.name})
            check([_record(row) for row in rows])
            await tx.rows(_INSERT, _values(replace(new, version=version)))

        await self._database.write(change)

    async def change(
        self, token_id: str, change: Callable[[TokenRecord], TokenRecord]
    ) -> TokenRecord | None:
        """Replace a token by what ``change`` makes of it, in one transaction; None: there is
        none. What ``change`` raises undoes that.
        """

        async def work(tx: Transaction) -> TokenRecord | None:
            version = await _next_version(tx)
            rows = await tx.rows("SELECT * FROM tokens WHERE id = :id", {"id": token_id})
            if not rows:
                return None
            new = replace(change(_record(rows[0])), version=version)
            await tx.rows(_UPDATE, _values(new))
            return new

        return await self._database.write(work)

    async def used(self, uses: Mapping[str, tuple[Micros, str]]) -> None:
        """Keep when and from where each of these tokens was used last; no new version."""

        async def change(tx: Transaction) -> None:
            for token_id, (at, peer) in uses.items():
                await tx.rows(_USED, {"id": token_id, "at": at, "peer": peer})

        await self._database.write(change)


async def _next_version(tx: Transaction) -> int:
    """The number of this change; whoever changes tokens waits here for the one before."""
    return int((await tx.rows(NEXT_VERSION))[0]["value"])


def _values(record: TokenRecord) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(record, name) for name in _COLUMNS}
    values["role"] = record.role.value
    values["users"] = json.dumps(record.users)
    values["scopes"] = None if record.scopes is None else json.dumps(sorted(record.scopes))
    return values


def _record(row: Row) -> TokenRecord:
    values = {name: row[name] for name in (*_COLUMNS, "last_used_at", "last_used_from")}
    scopes = row["scopes"]
    return TokenRecord(
        **values
        | {
            "role": Role(row["role"]),
            "users": tuple(json.loads(row["users"])),
            "scopes": None if scopes is None else frozenset(map(Scope, json.loads(scopes))),
        }
    )
