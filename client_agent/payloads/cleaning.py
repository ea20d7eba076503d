"""Removes what is not needed any more of a payload: first all but a tombstone, later that too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from client_agent.payloads.payload import Payload, from_row
from shared.clock import Micros
from shared.sql import Transaction, listed

_TOMBSTONE: Final = """
    state = 'Cleaned', changed = :changed, cleaned_at = coalesce(cleaned_at, :now),
    outcome = json_remove(outcome, '$.stderr_tail', '$.result', '$.live', '$.retry_later')
"""
"""Makes a tombstone of a row: it says only that the attempt was here, and how it ended."""


async def due(tx: Transaction, before: Micros, limit: int) -> list[int]:
    """Ids of the payloads that ended before that time and are not cleaned yet, oldest first."""
    rows = await tx.rows(
        """
        SELECT id FROM payloads WHERE ended_at <= :before AND cleaned_at IS NULL
        ORDER BY ended_at LIMIT :limit
        """,
        {"before": before, "limit": limit},
    )
    return [row["id"] for row in rows]


async def clean(tx: Transaction, payload_id: int, changed: int, now: Micros) -> Payload:
    """Make a tombstone of a payload."""
    rows = await tx.rows(
        f"UPDATE payloads SET {_TOMBSTONE} WHERE id = :id RETURNING *",  # noqa: S608 - fixed words
        {"id": payload_id, "changed": changed, "now": now},
    )
    return from_row(rows[0])


async def acknowledge(tx: Transaction, ids: Sequence[int], changed: int, now: Micros) -> None:
    """Make unlisted tombstones of ended payloads."""
    names, params = listed(ids)
    await tx.rows(
        f"UPDATE payloads SET {_TOMBSTONE}, acknowledged = 1, "  # noqa: S608 - names
        "given = json_set(given, '$.user_id', '') "
        f"WHERE id IN ({names})",
        params | {"changed": changed, "now": now},
    )


async def prune(tx: Transaction, before: Micros, limit: int) -> list[int]:
    """Remove tombstones that are older; returns their ids."""
    rows = await tx.rows(
        """
        DELETE FROM payloads WHERE id IN (
            SELECT id FROM payloads WHERE cleaned_at <= :before LIMIT :limit
        ) RETURNING id
        """,
        {"before": before, "limit": limit},
    )
    return [row["id"] for row in rows]
