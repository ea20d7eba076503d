"""What a copy of the database says of files, and what makes it another server's database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from server.domain.files import FileKind
from shared.sql import Transaction
from shared.sqlite.database import Database

_BUNDLES: Final = """
    SELECT id AS job_id, bundle_file AS file, bundle_size, bundle_digest, 0 FROM jobs
    WHERE bundle_file IS NOT NULL
"""
_SCHEDULED: Final = """
    UNION ALL
    SELECT -id AS job_id, bundle_file AS file, bundle_size, bundle_digest, 0 FROM schedules
"""
_RESULTS: Final = """
    SELECT {job_id} AS job_id, result_file AS file, result_size, result_sha256, {offset}
    FROM {table}
    WHERE result_file IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored file that a job or a schedule refers to."""

    job_id: int
    """Of a schedule: its number, below 0."""
    kind: FileKind
    name: str
    size: int
    digest: str
    """Of a bundle's content, of a result's bytes."""
    offset: int = 0
    """Where it begins in the file, which may hold several results."""

    @property
    def owner(self) -> str:
        """In words."""
        return f"job {self.job_id}" if self.job_id > 0 else f"schedule {-self.job_id}"


def identity(connection: sqlite3.Connection) -> str:
    """The server that made it; empty: no server has opened it yet."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'server'").fetchone()
    return str(row[0]) if row else ""


def count_jobs(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


def stored_files(connection: sqlite3.Connection) -> Iterator[StoredFile]:
    """Every file that a job or a schedule refers to; once for each that shares it."""
    for kind, sql in _files(connection).items():
        yield from (StoredFile(row[0], kind, *row[1:]) for row in connection.execute(sql))


def refers_to(connection: sqlite3.Connection, file: StoredFile) -> bool:
    """Whether its job or schedule still has the file."""
    sql = _files(connection)[file.kind]
    sql = f"SELECT 1 FROM ({sql}) WHERE job_id = ? AND file = ?"  # noqa: S608 - no user input
    return connection.execute(sql, (file.job_id, file.name)).fetchone() is not None


def leave_out(connection: sqlite3.Connection, job_ids: Iterable[int]) -> None:
    """Take jobs, and schedules (numbers below 0), out of a copy, in one transaction."""
    recorded = _records_attempts(connection)
    connection.execute("BEGIN IMMEDIATE")
    for job_id in job_ids:
        if job_id < 0:
            schedule = (-job_id,)
            connection.execute(
                """
                UPDATE bundles SET refs = refs - 1
                WHERE file = (SELECT bundle_file FROM schedules WHERE id = ?)
                """,
                schedule,
            )
            connection.execute("DELETE FROM schedules WHERE id = ?", schedule)
            continue
        if recorded:
            connection.execute(
                """
                UPDATE bundles SET refs = refs - 1
                WHERE file = (SELECT bundle_file FROM jobs WHERE id = ?)
                """,
                (job_id,),
            )
            connection.execute("DELETE FROM attempts WHERE job_id = ?", (job_id,))
        for table in ("job_tags", "events", "idempotency_keys"):
            connection.execute(f"DELETE FROM {table} WHERE job_id = ?", (job_id,))  # noqa: S608
        connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
    if recorded:
        connection.execute("DELETE FROM bundles WHERE refs <= 0")
    connection.execute("COMMIT")


def _records_attempts(connection: sqlite3.Connection) -> bool:
    """Whether attempts and bundles have tables of their own: an older version's have not."""
    return _has_table(connection, "attempts")


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return connection.execute(known, (name,)).fetchone() is not None


def _files(connection: sqlite3.Connection) -> dict[FileKind, str]:
    table, job_id = ("attempts", "job_id") if _records_attempts(connection) else ("jobs", "id")
    columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    offset = "result_offset" if "result_offset" in columns else "0"
    results = _RESULTS.format(table=table, job_id=job_id, offset=offset)
    bundles = _BUNDLES + (_SCHEDULED if _has_table(connection, "schedules") else "")
    return {FileKind.BUNDLE: bundles, FileKind.RESULT: results}


async def become_another(database: Database, new: str, skip: int, *, follow: bool) -> None:
    """Give a restored database an identity of its own, and job numbers that were never used.

    Args:
        new: the new identity.
        skip: how many job numbers the former server may have used since the backup.
        follow: the former server is gone: end what agents hold for it.
    """

    async def change(tx: Transaction) -> None:
        rows = await tx.rows("SELECT key, value FROM meta WHERE key IN ('server', 'former')")
        identities = {row["key"]: row["value"] for row in rows}
        former = json.loads(identities.get("former", "[]"))
        if "server" in identities:
            former.append(identities["server"])
        values = {"server": new, "former": json.dumps(former if follow else [])}
        for key, value in values.items():
            await tx.rows(
                """
                INSERT INTO meta (key, value) VALUES (:key, :value)
                ON CONFLICT (key) DO UPDATE SET value = excluded.value
                """,
                {"key": key, "value": value},
            )
        # Those that were ended since the backup would be good again.
        await tx.rows("DELETE FROM sessions")
        for table, numbers in (("jobs", skip), ("events", 10 * skip)):
            params = {"table": table, "numbers": numbers}
            await tx.rows(
                """
                INSERT INTO sqlite_sequence (name, seq) SELECT :table, 0
                WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :table)
                """,
                {"table": table},
            )
            await tx.rows(
                "UPDATE sqlite_sequence SET seq = seq + :numbers WHERE name = :table", params
            )

    await database.write(change)
