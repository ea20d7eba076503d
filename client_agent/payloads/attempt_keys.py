"""Keys of attempts: which payload has one, and which was promised never to be taken.

A key is scoped by the server that made it. A server that does not know whether its order arrived
settles the key: it gets the payload, or the promise that a late arrival will be turned away. Then
it may mint another attempt, and there are never two at once.

A server that was restored from a backup mints keys again that it used before. So a key stands for
one bundle: with another it is refused, and nobody is given what somebody else's bundle left.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from client_agent.payloads.errors import DigestMismatch, KeyRefused, StaleAttempt
from client_agent.payloads.payload import Payload, payload
from shared.clock import SECOND, Micros
from shared.ids import AttemptKey
from shared.sqlite.database import Database
from shared.sqlite.transactions import Transaction

Source: TypeAlias = Transaction | Database

_KEEP_S: Final = 86_400.0
"""A refusal outlives any request that may still carry its key, however short ``retention`` is."""


async def find(source: Source, server: str, key: AttemptKey) -> Payload | None:
    """The payload under a key."""
    rows = await source.rows(
        "SELECT * FROM payloads WHERE server = :server AND key = :key",
        {"server": server, "key": str(key)},
    )
    return payload(rows[0]) if rows else None


async def known(source: Source, server: str, key: AttemptKey, digest: str) -> Payload | None:
    """The payload under a key; None: there is none, and the key may be taken.

    Args:
        digest: of the bundle that the key is used for now.

    Raises:
        DigestMismatch, KeyRefused, StaleAttempt
    """
    rows = await source.rows(
        """
        SELECT
            EXISTS (SELECT 1 FROM payloads WHERE server = :server AND key = :key) AS known,
            EXISTS (SELECT 1 FROM refusals WHERE server = :server AND key = :key) AS refused,
            (SELECT max(attempt) FROM (
                SELECT max(attempt) AS attempt FROM payloads
                WHERE server = :server AND job_id = :job
                UNION ALL
                SELECT max(attempt) FROM refusals WHERE server = :server AND job_id = :job
            ) AS attempts) AS latest
        """,
        {"server": server, "key": str(key), "job": key.job_id},
    )
    row = rows[0]
    if row["known"]:
        there = await find(source, server, key)
        if there is not None and there.bundle_digest != digest:
            raise DigestMismatch(key, there.bundle_digest)
        return there
    if row["refused"]:
        raise KeyRefused(key)
    if (row["latest"] or 0) > key.attempt:
        raise StaleAttempt(key, row["latest"])
    return None


async def refuse(tx: Transaction, server: str, key: AttemptKey, now: Micros) -> None:
    """Never take this key. Repeats are harmless."""
    await tx.rows(
        """
        INSERT INTO refusals (server, key, job_id, attempt, at)
        VALUES (:server, :key, :job_id, :attempt, :now)
        ON CONFLICT (server, key) DO NOTHING
        """,
        {
            "server": server,
            "key": str(key),
            "job_id": key.job_id,
            "attempt": key.attempt,
            "now": now,
        },
    )


async def forget(tx: Transaction, now: Micros, retention_s: float) -> None:
    """Drop the refusals that no request can meet any more."""
    await tx.rows(
        "DELETE FROM refusals WHERE at <= :before",
        {"before": now - round(max(retention_s, _KEEP_S) * SECOND)},
    )
