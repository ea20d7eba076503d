"""The agent's own id, by which servers recognize it under any name and address."""

from __future__ import annotations

from shared.sqlite.database import Database


async def agent_identity(database: Database, new: str) -> str:
    """The stored id; ``new``, which is then stored, if this is the first start."""
    rows = await database.rows("SELECT value FROM meta WHERE key = 'agent'")
    if rows:
        return str(rows[0]["value"])
    statement = "INSERT INTO meta (key, value) VALUES ('agent', :new)"
    await database.write(lambda tx: tx.rows(statement, {"new": new}))
    return new
