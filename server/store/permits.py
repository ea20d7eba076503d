"""What is kept of permits: links and tickets that were used, for as long as they could come again,
and how often the sessions of each token were ended.
"""

from __future__ import annotations

from server.domain.jobs import UsedTicket
from server.store.statements import Part
from shared.clock import Micros
from shared.sql import Database, Tx


def use_ticket(tx: Tx, ticket: UsedTicket) -> bool:
    """Use it; False: it was used before."""
    rows = tx.rows(
        """
        INSERT INTO used_tickets (id, expires_at) VALUES (:id, :expires_at)
        ON CONFLICT DO NOTHING RETURNING id
        """,
        {"id": ticket.id, "expires_at": ticket.expires_at},
    )
    return bool(rows)


class Tickets(Part):
    """The part of :class:`SqlJobs` that knows used tickets."""

    async def ticket_used(self, ticket_id: str) -> bool:
        """Whether an upload ticket has become a job."""
        rows = await self._database.rows(
            "SELECT 1 AS used FROM used_tickets WHERE id = :id", {"id": ticket_id}
        )
        return bool(rows)

    async def forget_tickets(self, before: Micros) -> int:
        """Forget the used upload tickets that had to be known until then; how many."""
        found = await self._database.rows(
            "SELECT 1 AS old FROM used_tickets WHERE expires_at < :before LIMIT 1",
            {"before": before},
        )
        if not found:  # nearly always: no transaction then
            return 0
        rows = await self._database.write(
            lambda tx: tx.rows(
                "DELETE FROM used_tickets WHERE expires_at < :before RETURNING id",
                {"before": before},
            )
        )
        return len(rows)


async def ended(database: Database) -> dict[str, int]:
    """Token (its id; of one of the settings, its digest) -> how often its sessions were ended."""
    rows = await database.rows("SELECT token, ended FROM sessions")
    return {row["token"]: row["ended"] for row in rows}


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


async def log_in_once(database: Database, once: UsedTicket) -> bool:
    """Use a link that logs in; False: it was used before."""
    return await database.write(lambda tx: use_ticket(tx, once))
