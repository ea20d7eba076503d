"""Keys of attempts: which payload has a key, and which keys are refused for good.

A key is unique within the server that made it. A server that does not know whether its submit
arrived settles the key: it gets the payload, or from then on a late submit of that key is refused.
Then it may make another attempt, and two attempts of a job never run at once.

A server that was restored from a backup makes keys that it has used before. So a key stands for one
bundle: a submit of another bundle is refused, and cannot get the result of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from client_agent.payloads.errors import (
    DigestMismatch,
    KeyRefused,
    NoSuchPayload,
    StaleAttempt,
    StaleStart,
)
from client_agent.payloads.payload import ENDED, Payload, from_row
from shared.clock import SECOND, Micros
from shared.ids import NO_START, AttemptKey, Start
from shared.sql import AMONG, Tx, among

NO_PAYLOAD: Final = "payload_not_found"
"""Code: another payload has the number."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for a change of a payload, as far as the request says."""

    start: Start = NO_START
    server: str | None = None
    """Identity of the server; None: the one that the payload came from."""
    key: str | None = None
    """Key of the payload that is meant; None: whatever payload has the number."""


def check(tx: Tx, server: str, start: Start) -> None:
    """Remember the latest start of a server. Raises StaleStart if it is not this one."""
    rows = tx.rows("SELECT number, id FROM starts WHERE server = :server", {"server": server})
    seen = Start(*rows[0]) if rows else NO_START
    if start.number < seen.number or (start.number == seen.number and start.id != seen.id):
        raise StaleStart(start, seen)
    if start.number > seen.number:
        tx.rows(
            """
            INSERT INTO starts (server, number, id) VALUES (:server, :number, :id)
            ON CONFLICT (server) DO UPDATE SET number = :number, id = :id
            """,
            {"server": server, "number": start.number, "id": start.id},
        )


def check_payload(tx: Tx, payload_id: int, caller: Caller) -> None:
    """Whether the caller may change the payload, if there is one. Raises NoSuchPayload if
    another payload has the number, or StaleStart."""
    rows = tx.rows("SELECT server, key FROM payloads WHERE id = :id", {"id": payload_id})
    if not rows:
        return
    if caller.key is not None and caller.key != rows[0]["key"]:
        raise NoSuchPayload(payload_id)
    server = caller.server or rows[0]["server"]
    if server is not None:
        check(tx, server, caller.start)


def split_ended(
    tx: Tx, keys: Mapping[int, str | None], caller: Caller
) -> tuple[list[int], dict[int, str]]:
    """Which of some payloads have ended, and for the others the code of why they are kept; those
    that are not known are neither. Raises StaleStart.

    Args:
        keys: payload -> its key; None: whatever payload has the number.
    """
    sql = f"SELECT id, server, key, state FROM payloads WHERE id {AMONG}"  # noqa: S608 - no input
    rows = tx.rows(sql, among(keys))
    meant = [row for row in rows if keys[row["id"]] in (None, row["key"])]
    for server in {caller.server or row["server"] for row in meant} - {None}:
        check(tx, server, caller.start)
    refused = {row["id"]: NO_PAYLOAD for row in rows if row not in meant}
    refused |= {row["id"]: "not_ended" for row in meant if row["state"] not in ENDED}
    return [row["id"] for row in rows if row["id"] not in refused], refused


_MIN_RETENTION_S: Final = 86_400.0
"""Refusals are kept at least this long, so that they outlive every request with their key."""


def find(tx: Tx, server: str, key: AttemptKey) -> Payload | None:
    """The payload under a key."""
    rows = tx.rows(
        "SELECT * FROM payloads WHERE server = :server AND key = :key",
        {"server": server, "key": str(key)},
    )
    return from_row(rows[0]) if rows else None


def look_up(tx: Tx, server: str, key: AttemptKey, digest: str) -> Payload | None:
    """The payload under a key; None: there is none, and the key may be used. Raises DigestMismatch,
    KeyRefused or StaleAttempt.

    Args:
        digest: of the bundle in the submit.
    """
    rows = tx.rows(
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
        payload = find(tx, server, key)
        if payload is not None and payload.bundle_digest != digest:
            raise DigestMismatch(key, payload.bundle_digest)
        return payload
    if row["refused"]:
        raise KeyRefused(key)
    if (row["latest"] or 0) > key.attempt:
        raise StaleAttempt(key, row["latest"])
    return None


def refuse(tx: Tx, server: str, key: AttemptKey, now: Micros) -> None:
    """Refuse this key from now on. Repeats are harmless."""
    tx.rows(
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


def prune(tx: Tx, now: Micros, retention_s: float) -> None:
    """Remove refusals that are old enough."""
    tx.rows(
        "DELETE FROM refusals WHERE at <= :before",
        {"before": now - round(max(retention_s, _MIN_RETENTION_S) * SECOND)},
    )
