"""The agent's own id, by which servers know it again whatever its name or address."""

from __future__ import annotations

from shared.sqlite.database import Database


async def agent_identity(database: Database, fresh: str) -> str:
    """The id that was minted at the first start: ``fresh`` now, if the database has none."""

    kept = await database.rows("SELECT value FROM meta WHERE key = 'agent'")
    if kept:
        return str(kept[0]["value"])
    statement = "INSERT INTO meta (key, value) VALUES ('agent', :fresh)"
    await database.write(lambda tx: tx.rows(statement, {"fresh": fresh}))
    return fresh
