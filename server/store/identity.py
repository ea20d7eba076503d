"""What a database was given when it was made: its name, which scopes its attempt keys on agents,
and the secrets that it signs with.
"""

from __future__ import annotations

import json
from typing import Final

from shared.clock import SECOND, Micros
from shared.ids import Start
from shared.sql import Database, Tx

_WEBHOOKS: Final = "webhook_secret"
_PERMITS: Final = "signing_key"
_FORMS: Final = "csrf_key"


async def server_identity(database: Database, candidate: str) -> tuple[str, tuple[str, ...]]:
    """The name that the database was given when it was made (``candidate`` if that is now), and the
    names of the servers that it was restored in place of.
    """

    def change(tx: Tx) -> dict[str, str]:
        tx.rows(
            "INSERT INTO meta (key, value) VALUES ('server', :candidate) ON CONFLICT DO NOTHING",
            {"candidate": candidate},
        )
        rows = tx.rows("SELECT key, value FROM meta WHERE key IN ('server', 'former')")
        return {row["key"]: row["value"] for row in rows}

    names = await database.write(change)
    return names["server"], tuple(json.loads(names.get("former", "[]")))


async def new_start(database: Database, now: Micros, random_id: str) -> Start:
    """The start of this run of the server: higher than that of any earlier one, and than that of
    an earlier run of a copy of its data folder.
    """

    def change(tx: Tx) -> int:
        rows = tx.rows("SELECT value FROM meta WHERE key = 'start'")
        number = max(int(rows[0]["value"]) + 1 if rows else 1, now // SECOND)
        tx.rows(
            """
            INSERT INTO meta (key, value) VALUES ('start', :value)
            ON CONFLICT (key) DO UPDATE SET value = :value
            """,
            {"value": str(number)},
        )
        return number

    return Start(await database.write(change), random_id)


async def is_rehearsal(database: Database) -> bool:
    """Whether it is a copy of a server's that goes on."""
    return bool(await database.rows("SELECT 1 FROM meta WHERE key = 'rehearsal'"))


async def webhook_secret(database: Database, candidate: str) -> str:
    """The secret that all secrets of webhooks are made from (``candidate`` if there is none)."""
    return await _kept(database, _WEBHOOKS, candidate)


async def signing_key(database: Database, candidate: bytes) -> bytes:
    """The secret that signs upload tickets and links (``candidate`` if there is none)."""
    return bytes.fromhex(await _kept(database, _PERMITS, candidate.hex()))


async def csrf_key(database: Database, candidate: bytes) -> bytes:
    """The secret that proves that a form was sent by a page of ours (``candidate`` if none)."""
    return bytes.fromhex(await _kept(database, _FORMS, candidate.hex()))


async def _kept(database: Database, key: str, candidate: str) -> str:
    def change(tx: Tx) -> str:
        values = {"key": key, "value": candidate}
        tx.rows(
            "INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT DO NOTHING", values
        )
        rows = tx.rows("SELECT value FROM meta WHERE key = :key", values)
        return str(rows[0]["value"])

    return await database.write(change)
