"""The rows of the audit trail."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from server.store.records import insert, reader
from shared.clock import Micros
from shared.principals import Role
from shared.sql import Tx


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A request that was to change something.

    Attributes:
        principal: the name of whoever made it.
        acts_as: the user for whom a portal made it.
        action: method and route, as in ``POST /api/v1/jobs/{id}/cancel``.
        target: what it was about, such as the number of a job; empty: nothing that has a name.
        status: of the answer; 0: the caller left before it.
        code: of a refusal.
        peer: address that it came from.
        left_out: so many refused requests before it are in no entry, because there were too many.
        seq: its number; 0: not kept yet.
    """

    at: Micros
    principal: str
    role: Role | None
    token_id: str | None
    acts_as: str | None
    action: str
    target: str
    status: int
    code: str | None
    peer: str
    request_id: str
    left_out: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries a list has; None: any.

    Attributes:
        action: some of its text, whatever the case.
        since, until: from then on, before then.
    """

    principal: str | None = None
    acts_as: str | None = None
    token_id: str | None = None
    action: str | None = None
    target: str | None = None
    since: Micros | None = None
    until: Micros | None = None


_entry: Final = reader(AuditEntry, {"role": Role})
_WHERE: Final = {
    "principal": "principal = :principal",
    "acts_as": "acts_as = :acts_as",
    "token_id": "token_id = :token_id",
    "action": r"lower(action) LIKE :action ESCAPE '\'",
    "target": "target = :target",
    "since": "at >= :since",
    "until": "at < :until",
}


def keep(tx: Tx, entries: Sequence[AuditEntry]) -> None:
    """Add entries. They are numbered in the order in which they are kept; nobody changes one."""
    for entry in entries:
        values = dataclasses.asdict(entry)
        del values["seq"]
        insert(tx, "audit", values)


def page(tx: Tx, which: AuditFilter, limit: int, before: int) -> Sequence[AuditEntry]:
    """Entries with a lower number than ``before``, the newest first."""
    params: dict[str, Any] = {
        name: value for name in _WHERE if (value := getattr(which, name)) is not None
    }
    where = " AND ".join(["seq < :before", *(_WHERE[name] for name in params)])
    if which.action is not None:
        params["action"] = f"%{_plain(which.action.lower())}%"
    sql = f"SELECT * FROM audit WHERE {where} ORDER BY seq DESC LIMIT :limit"  # noqa: S608
    return [_entry(row) for row in tx.rows(sql, params | {"limit": limit, "before": before})]


def remove(tx: Tx, before: Micros, most: int) -> int:
    """Remove entries of an earlier time, ``most`` at most. Returns how many."""
    sql = """
        DELETE FROM audit WHERE seq IN
            (SELECT seq FROM audit WHERE at < :before ORDER BY at LIMIT :most)
        RETURNING seq
    """
    return len(tx.rows(sql, {"before": before, "most": most}))


def _plain(text: str) -> str:
    """The text as itself in a pattern of LIKE."""
    return "".join(f"\\{letter}" if letter in r"\%_" else letter for letter in text)
