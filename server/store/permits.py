"""What is kept of permits: links and tickets that were used, for as long as they could come again,
and how often the sessions of each token were ended.
"""

from __future__ import annotations

from dataclasses import asdict

from server.domain.jobs import UsedTicket
from server.store.columns import insert
from shared.sql import Tx


def use_ticket(tx: Tx, ticket: UsedTicket) -> bool:
    """Use it; False: it was used before."""
    return bool(insert(tx, "used_tickets", asdict(ticket), "ON CONFLICT DO NOTHING RETURNING id"))


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
