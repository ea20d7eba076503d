"""The database's own name, which scopes its attempt keys on agents."""

from __future__ import annotations

import json

from shared.sql import Database, Transaction


async def server_identity(database: Database, candidate: str) -> tuple[str, tuple[str, ...]]:
    """The name that the database was given when it was made (``candidate`` if that is now), and the
    names of the servers that it was restored in place of.
    """

    async def change(tx: Transaction) -> dict[str, str]:
        await tx.rows(
            "INSERT INTO meta (key, value) VALUES ('server', :candidate) ON CONFLICT DO NOTHING",
            {"candidate": candidate},
        )
        rows = await tx.rows("SELECT key, value FROM meta WHERE key IN ('server', 'former')")
        return {row["key"]: row["value"] for row in rows}

    names = await database.write(change)
    return names["server"], tuple(json.loads(names.get("former", "[]")))
