"""The database's own name, which scopes its attempt keys on agents."""

from __future__ import annotations

from shared.database import Database, Transaction


async def server_identity(database: Database, fresh: str) -> str:
    """The name that the database was given when it was made; ``fresh`` if it is new."""

    async def change(tx: Transaction) -> str:
        await tx.rows(
            "INSERT INTO meta (key, value) VALUES ('server', :fresh) ON CONFLICT DO NOTHING",
            {"fresh": fresh},
        )
        found = await tx.rows("SELECT value FROM meta WHERE key = 'server'")
        return str(found[0]["value"])

    return await database.write(change)
