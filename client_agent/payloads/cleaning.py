"""What becomes of payloads that have been kept long enough: tombstones first, then nothing."""

from __future__ import annotations

from typing import Final

from client_agent.payloads.payload import Payload, payload
from shared.clock import Micros
from shared.sqlite.transactions import Transaction

SETS: Final = """
    state = 'Cleaned', changed = :changed, cleaned_at = coalesce(cleaned_at, :now),
    stderr_tail = '', result_size = NULL, result_sha256 = NULL
"""
"""Makes a tombstone of a row: what stays says that the attempt was here."""


async def due(tx: Transaction, before: Micros, limit: int) -> list[int]:
    """Ids of the payloads that ended before and were not cleaned yet, oldest first."""
    rows = await tx.rows(
        """
        SELECT id FROM payloads WHERE ended_at <= :before AND cleaned_at IS NULL
        ORDER BY ended_at LIMIT :limit
        """,
        {"before": before, "limit": limit},
    )
    return [row["id"] for row in rows]


async def clean(tx: Transaction, payload_id: int, changed: int, now: Micros) -> Payload:
    """Make a tombstone of it."""
    rows = await tx.rows(
        f"UPDATE payloads SET {SETS} WHERE id = :id RETURNING *",  # noqa: S608 - fixed words
        {"id": payload_id, "changed": changed, "now": now},
    )
    return payload(rows[0])


async def prune(tx: Transaction, before: Micros, limit: int) -> int:
    """Remove tombstones that are older. How many."""
    rows = await tx.rows(
        """
        DELETE FROM payloads WHERE id IN (
            SELECT id FROM payloads WHERE cleaned_at <= :before LIMIT :limit
        ) RETURNING id
        """,
        {"before": before, "limit": limit},
    )
    return len(rows)
