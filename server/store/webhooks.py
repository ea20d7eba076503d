"""Webhooks: what has to be delivered, and how the tries went."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final, TypeAlias

from server.domain.webhooks import Delivery, Try
from server.store import identity
from server.store.records import reader
from shared.clock import Micros
from shared.sql import Row, Tx

_LOOKED_AT: Final = 64
"""Deliveries that are due longest, of which some are left out."""
_TARGETS_WALKED: Final = 200
_PENDING: Final = "SELECT id FROM deliveries AS d WHERE d.next_at IS NOT NULL"
_NEXT_TARGET: Final = f"""
    coalesce(
        ({_PENDING} AND d.principal = {{name}} AND d.target > {{target}}
         ORDER BY target, next_at LIMIT 1),
        ({_PENDING} AND d.principal > {{name}} ORDER BY principal, target, next_at LIMIT 1)
    )
"""
"""What is due longest for the principal and target behind these, in the order of their index."""
_TRIES_KEPT: Final = 10
_SHOWN: Final = 20
"""Deliveries of one job: a job that is run again has one for each end."""
_REPLACED: Final = "webhooks of "
"""Of a principal, among the keys of ``meta``: how often its secret was replaced, and when last."""


Walked: TypeAlias = tuple[str, str]
"""The principal and target up to which a call of :func:`due` has looked; empty: to the end."""


def due(
    tx: Tx,
    now: Micros,
    limit: int,
    walked: Walked,
    *,
    targets: Collection[str],
    principals: Collection[str],
) -> tuple[list[Delivery], Walked]:
    """Those whose time has come, the longest due first.

    Args:
        walked: of the call before.
        targets, principals: whose deliveries are left out.
    """
    # Few are left out, unless a receiver does not answer.
    rows = tx.rows(
        """
        SELECT * FROM deliveries WHERE next_at IS NOT NULL AND next_at <= :now
        ORDER BY next_at LIMIT :looked_at
        """,
        {"now": now, "looked_at": _LOOKED_AT},
    )
    found = {row["id"]: row for row in rows if _may(row, targets, principals)}
    if len(found) < limit and len(rows) == _LOOKED_AT:
        first, walked = _first_of_each(tx, now, walked)
        found |= {row["id"]: row for row in first if _may(row, targets, principals)}
    return [_delivery(row) for row in list(found.values())[:limit]], walked


def _first_of_each(tx: Tx, now: Micros, walked: Walked) -> tuple[list[Row], Walked]:
    """What is due longest for each principal and target, however much waits for one of them. Of
    very many targets only some; the next call goes on behind them.
    """
    name, target = walked
    rows = tx.rows(
        f"""
        WITH RECURSIVE line (id, name, target) AS (
            SELECT id, principal, target FROM deliveries
            WHERE id = {_NEXT_TARGET.format(name=":name", target=":target")}
            UNION ALL
            SELECT found.id, found.principal, found.target
            FROM line JOIN deliveries AS found ON found.id =
            {_NEXT_TARGET.format(name="line.name", target="line.target")}
            LIMIT :most
        )
        SELECT deliveries.* FROM line JOIN deliveries ON deliveries.id = line.id
        """,  # noqa: S608 - no user input
        {"name": name, "target": target, "most": _TARGETS_WALKED},
    )
    walked = ("", "")
    if len(rows) == _TARGETS_WALKED:
        walked = rows[-1]["principal"], rows[-1]["target"]
    ready = [row for row in rows if row["next_at"] <= now]
    return sorted(ready, key=lambda row: row["next_at"]), walked


def next_at(tx: Tx) -> Micros | None:
    """When one is due next; None: never."""
    rows = tx.rows("SELECT min(next_at) AS next_at FROM deliveries WHERE next_at IS NOT NULL")
    found: Micros | None = rows[0]["next_at"]
    return found


def oldest(tx: Tx) -> Micros | None:
    """When the oldest was announced that has not ended; None: all have."""
    rows = tx.rows("SELECT min(created_at) AS oldest FROM deliveries WHERE next_at IS NOT NULL")
    found: Micros | None = rows[0]["oldest"]
    return found


def begin(tx: Tx, deliveries: Sequence[Delivery], until: Micros) -> list[Delivery]:
    """Count one more try of each that is still as it was seen, and let it be due again at
    ``until``, for the case that this server dies.

    Returns:
        Those, as they are now.
    """
    begun: list[Delivery] = []
    for one in deliveries:
        rows = tx.rows(
            """
            UPDATE deliveries SET tries = tries + 1, next_at = :until
            WHERE id = :id AND tries = :tries AND next_at = :seen RETURNING *
            """,
            {"id": one.id, "tries": one.tries, "seen": one.next_at, "until": until},
        )
        begun += map(_delivery, rows)
    return begun


def end(tx: Tx, delivery: Delivery, done: Try, again_at: Micros | None) -> None:
    """Write down how a try went, and when it is tried again; None: it has ended."""
    ended = again_at is None
    tried = [*delivery.tried, done][-_TRIES_KEPT:]
    tx.rows(
        """
        UPDATE deliveries SET state = :state, message = :message, next_at = :next,
            ended_at = :ended, tried = :tried
        WHERE id = :id AND tries = :tries AND state = 'pending'
        """,
        {
            "id": delivery.id,
            "tries": delivery.tries,
            "state": "pending" if not ended else "delivered" if done.problem is None else "failed",
            "message": done.problem or f"delivered, answered {done.status}",
            "next": again_at,
            "ended": done.at + round(done.seconds * 1_000_000) if ended else None,
            "tried": json.dumps([[getattr(one, name) for name in _TRY] for one in tried]),
        },
    )


def of_job(tx: Tx, job_id: int) -> list[Delivery]:
    """The newest of a job, the first one first."""
    rows = tx.rows(
        "SELECT * FROM deliveries WHERE job_id = :id ORDER BY id DESC LIMIT :most",
        {"id": job_id, "most": _SHOWN},
    )
    return [_delivery(row) for row in reversed(rows)]


def replaced(tx: Tx, principal: str) -> tuple[int, Micros]:
    """How often the secret of a principal was replaced, and when last."""
    number, _, at = (identity.value(tx, f"{_REPLACED}{principal}") or "0 0").partition(" ")
    return int(number), int(at)


def replace(tx: Tx, principal: str, at: Micros) -> None:
    identity.put(tx, f"{_REPLACED}{principal}", f"{replaced(tx, principal)[0] + 1} {at}")


_TRY: Final = ("number", "at", "seconds", "status", "problem")
"""What of a try is kept."""


def _may(row: Row, targets: Collection[str], principals: Collection[str]) -> bool:
    return row["target"] not in targets and row["principal"] not in principals


_delivery: Final = reader(
    Delivery, {"tried": lambda text: tuple(Try(*one) for one in json.loads(text))}
)
