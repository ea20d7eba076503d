"""The database's own name, which scopes its attempt keys on agents."""

from __future__ import annotations

import json

from shared.sql import Database, Transaction


async def server_identity(database: Database, fresh: str) -> tuple[str, tuple[str, ...]]:
    """The name that the database was given when it was made (``fresh`` if it is new), and the
    names of the servers that it was restored in place of.
    """

    async def change(tx: Transaction) -> dict[str, str]:
        await tx.rows(
            "INSERT INTO meta (key, value) VALUES ('server', :fresh) ON CONFLICT DO NOTHING",
            {"fresh": fresh},
        )
        found = await tx.rows("SELECT key, value FROM meta WHERE key IN ('server', 'former')")
        return {row["key"]: row["value"] for row in found}

    found = await database.write(change)
    return found["server"], tuple(json.loads(found.get("former", "[]")))
