"""The rows of API tokens. Secrets are not among them, only their digests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from server.domain.tokens import TokenRecord
from shared.clock import Micros
from shared.principals import Role, Scope
from shared.sql import Row, Tx

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
)
_SET: Final = ", ".join(f"{name} = :{name}" for name in _COLUMNS if name != "id")
_INSERT: Final = (
    f"INSERT INTO tokens ({', '.join(_COLUMNS)}) "  # noqa: S608 - names of columns
    f"VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
)
_UPDATE: Final = f"UPDATE tokens SET {_SET} WHERE id = :id"  # noqa: S608 - names of columns
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


def all_tokens(tx: Tx) -> list[TokenRecord]:
    return [_record(row) for row in tx.rows("SELECT * FROM tokens")]


def page(
    tx: Tx, which: TokenFilter, limit: int, before: tuple[Micros, str] | None
) -> list[TokenRecord]:
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
    return [_record(row) for row in tx.rows(sql, params | {"limit": limit})]


def get(tx: Tx, token_id: str) -> TokenRecord | None:
    rows = tx.rows("SELECT * FROM tokens WHERE id = :id", {"id": token_id})
    return _record(rows[0]) if rows else None


def insert(tx: Tx, new: TokenRecord, check: Callable[[Sequence[TokenRecord]], None]) -> None:
    """Keep a token.

    Args:
        check: called with all tokens of the same name; what it raises undoes the insert.
    """
    rows = tx.rows("SELECT * FROM tokens WHERE name = :name", {"name": new.name})
    check([_record(row) for row in rows])
    tx.rows(_INSERT, _values(new))


def change(tx: Tx, token_id: str, rule: Callable[[TokenRecord], TokenRecord]) -> TokenRecord | None:
    """Replace a token by what ``rule`` makes of it; None: there is none."""
    record = get(tx, token_id)
    if record is None:
        return None
    new = rule(record)
    tx.rows(_UPDATE, _values(new))
    return new


def end_of_user(tx: Tx, user: str, instead: str, at: Micros) -> list[TokenRecord]:
    """End the user's tokens, and give them another name."""
    rows = tx.rows(
        """
        UPDATE tokens SET name = :instead, user_id = :instead, digest = '',
            former_digest = NULL, last_used_from = NULL, revoked_at = coalesce(revoked_at, :at)
        WHERE role = 'user' AND user_id = :user
        RETURNING *
        """,
        {"user": user, "instead": instead, "at": at},
    )
    return [_record(row) for row in rows]


def used(tx: Tx, uses: Mapping[str, tuple[Micros, str]]) -> None:
    """Keep when and from where each of these tokens was used last."""
    for token_id, (at, peer) in uses.items():
        tx.rows(_USED, {"id": token_id, "at": at, "peer": peer})


def remove_ended(tx: Tx, before: Micros) -> list[str]:
    """Remove tokens that were revoked or expired earlier; their ids. The latest of a name stays as
    long as something has that name: it must not become another principal's.
    """
    rows = tx.rows(
        """
        DELETE FROM tokens WHERE coalesce(revoked_at, expires_at) < :before AND (
            EXISTS (
                SELECT 1 FROM tokens AS later WHERE later.name = tokens.name
                AND (later.created_at, later.id) > (tokens.created_at, tokens.id)
            ) OR NOT EXISTS (
                SELECT 1 FROM jobs WHERE submitted_by = tokens.name
                UNION ALL SELECT 1 FROM schedules WHERE submitted_by = tokens.name
            )
        )
        RETURNING id
        """,
        {"before": before},
    )
    return [row["id"] for row in rows]


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
