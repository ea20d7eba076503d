"""The rows of API tokens, of which only the digests are kept; upload tickets that were used, for as
long as they could come again; and how often the sessions of each token were ended.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from server.domain.permits import Login, Ticket
from server.domain.tokens import TokenRecord
from server.store.records import insert as insert_row
from server.store.records import reader
from shared.clock import Micros
from shared.principals import Role, Scope
from shared.sql import Tx

_record: Final = reader(
    TokenRecord,
    {
        "role": Role,
        "users": lambda text: tuple(json.loads(text)),
        "scopes": lambda text: frozenset(map(Scope, json.loads(text))),
    },
)
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
    """Tokens, the newest first. ``before``: time and id of the last one of the page before."""
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
    """Keep a token. ``check``: called with all tokens of the same name; what it raises undoes the
    insert.
    """
    rows = tx.rows("SELECT * FROM tokens WHERE name = :name", {"name": new.name})
    check([_record(row) for row in rows])
    insert_row(tx, "tokens", _values(new))


def change(tx: Tx, token_id: str, rule: Callable[[TokenRecord], TokenRecord]) -> TokenRecord | None:
    """Replace a token by what ``rule`` makes of it; None: there is none."""
    record = get(tx, token_id)
    if record is None:
        return None
    new = rule(record)
    values = _values(new)
    setting = ", ".join(f"{name} = :{name}" for name in values)
    tx.rows(f"UPDATE tokens SET {setting} WHERE id = :id", values)  # noqa: S608 - columns
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
    tx.many(_USED, [{"id": one, "at": at, "peer": peer} for one, (at, peer) in uses.items()])


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
    """Of all columns but those of its use, which :func:`used` sets."""
    values = dataclasses.asdict(record)
    del values["last_used_at"], values["last_used_from"]
    scopes = None if record.scopes is None else json.dumps(sorted(record.scopes))
    return values | {"users": json.dumps(record.users), "scopes": scopes}


def use_ticket(tx: Tx, ticket: Ticket | Login) -> bool:
    """Use it; False: it was used before."""
    values = {"id": ticket.id, "expires_at": ticket.expires_at}
    unused = "ON CONFLICT DO NOTHING RETURNING id"
    return bool(insert_row(tx, "used_tickets", values, unused))


def ticket_used(tx: Tx, ticket_id: str) -> bool:
    """Whether an upload ticket has become a job."""
    rows = tx.rows("SELECT 1 AS used FROM used_tickets WHERE id = :id", {"id": ticket_id})
    return bool(rows)


def ended(tx: Tx) -> dict[str, int]:
    """Token (its id; of one of the settings, its digest) -> how often its sessions were ended."""
    return {row["token"]: row["ended"] for row in tx.rows("SELECT token, ended FROM sessions")}


def end(tx: Tx, token: str) -> int:
    """End those of a token; how often they were ended now."""
    rows = tx.rows(
        """
        INSERT INTO sessions (token, ended) VALUES (:token, 1)
        ON CONFLICT (token) DO UPDATE SET ended = sessions.ended + 1 RETURNING ended
        """,
        {"token": token},
    )
    return int(rows[0]["ended"])
