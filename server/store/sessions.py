"""Sessions of browsers: how often those of each token were ended, and what logged one in once."""

from __future__ import annotations

from server.domain.jobs import UsedTicket
from server.store.tickets import use_ticket
from shared.sql import Database, Transaction


async def ended(database: Database) -> dict[str, int]:
    """Token (its id; of one of the settings, its digest) -> how often its sessions were ended."""
    rows = await database.rows("SELECT token, ended FROM sessions")
    return {row["token"]: row["ended"] for row in rows}


async def end(tx: Transaction, token: str) -> int:
    """End those of a token; how often they were ended now."""
    rows = await tx.rows(
        """
        INSERT INTO sessions (token, ended) VALUES (:token, 1)
        ON CONFLICT (token) DO UPDATE SET ended = sessions.ended + 1 RETURNING ended
        """,
        {"token": token},
    )
    return int(rows[0]["ended"])


async def log_in_once(database: Database, once: UsedTicket) -> bool:
    """Use a link that logs in; False: it was used before."""
    return await database.write(lambda tx: use_ticket(tx, once))
