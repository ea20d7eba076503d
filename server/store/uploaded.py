"""Bytes that were uploaded on each day for each user who may not upload any number of them."""

from __future__ import annotations

from server.domain.allowances import DayUsed, OverDay, day_of, over_day
from shared.clock import Micros
from shared.sql import Database, Transaction


async def on_day(source: Database | Transaction, user_id: str, at: Micros) -> int:
    """Bytes of bundles that were uploaded for the user on the day of ``at``."""
    rows = await source.rows(
        "SELECT bytes FROM uploaded WHERE user_id = :user_id AND day = :day",
        {"user_id": user_id, "day": day_of(at)},
    )
    return int(rows[0]["bytes"]) if rows else 0


async def check(
    tx: Transaction, user_id: str, size: int, most: int, at: Micros
) -> DayUsed | OverDay | None:
    """The refusal of an upload; None: it may be made.

    Args:
        most: bytes a day; 0: any number.
    """
    return over_day(user_id, await on_day(tx, user_id, at), size, most, at) if most else None


async def add(tx: Transaction, user_id: str, size: int, at: Micros) -> None:
    """Count an upload."""
    await tx.rows(
        """
        INSERT INTO uploaded (user_id, day, bytes) VALUES (:user_id, :day, :bytes)
        ON CONFLICT (user_id, day) DO UPDATE SET bytes = uploaded.bytes + :bytes
        """,
        {"user_id": user_id, "day": day_of(at), "bytes": size},
    )
