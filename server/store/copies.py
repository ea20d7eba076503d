"""What a copy of the database says of files, and what makes it another server's database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from server.store import bundles, dependencies, retention, schedules
from server.store.statements import chunks
from shared.sqlite.database import Transacting

LEAST_SKIPPED: Final = 1_000_000
"""Numbers of jobs that are left out at least, where a former server may have given some."""
_END_DELIVERIES: Final = """
    UPDATE deliveries SET state = 'failed', message = 'a rehearsal sends no webhooks',
        next_at = NULL, ended_at = created_at
    WHERE state = 'pending'
"""


def identity(connection: sqlite3.Connection) -> str:
    """The server that made it; empty: no server has opened it yet."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'server'").fetchone()
    return str(row[0]) if row else ""


@dataclass(frozen=True, slots=True)
class Marks:
    """Where a database is in its life. None of the numbers ever becomes less.

    Attributes:
        server: the server that made it; empty: no server has opened it yet.
        last_job, last_event: the highest numbers that were given.
        starts: of servers with it; more is counted than was started, never less.
        former: the servers that it was put in place of.
    """

    server: str
    last_job: int
    last_event: int
    starts: int
    former: tuple[str, ...] = ()


def marks(connection: sqlite3.Connection) -> Marks:
    """Those of a database with the schema of now."""
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    given = dict(connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    return Marks(
        server=meta.get("server", ""),
        former=tuple(json.loads(meta.get("former", "[]"))),
        last_job=given.get("jobs", 0),
        last_event=given.get("events", 0),
        starts=int(meta.get("starts", 0)),
    )


def count_start(connection: sqlite3.Connection, candidate: str, starts: int) -> None:
    """A server starts with it: the name ``candidate`` is its own if it has none."""
    connection.execute("BEGIN IMMEDIATE")
    named = "INSERT INTO meta (key, value) VALUES ('server', ?) ON CONFLICT DO NOTHING"
    connection.execute(named, (candidate,))
    _set(connection, "starts", str(starts))
    connection.execute("COMMIT")


def live_tokens(connection: sqlite3.Connection, now: int) -> list[tuple[str, str]]:
    """Id and name of each token that is good."""
    sql = """
        SELECT id, name FROM tokens
        WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?) ORDER BY created_at, id
    """
    return [(row[0], row[1]) for row in connection.execute(sql, (now,))]


def count_jobs(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


def leave_out(connection: sqlite3.Connection, job_ids: Iterable[int]) -> None:
    """Take jobs, and schedules (numbers below 0), out of a copy, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("PRAGMA defer_foreign_keys=ON")  # until all of them are gone
    tx, left_out = Transacting(connection), set(job_ids)
    for names, params in chunks(sorted(left_out)):
        sql = f"SELECT id FROM jobs WHERE parent_id IN ({names})"  # noqa: S608 - placeholders
        left_out |= {row["id"] for row in tx.rows(sql, params)}
    jobs = sorted(number for number in left_out if number > 0)
    for number in left_out.difference(jobs):
        schedules.delete(tx, -number)
    for number in jobs:
        dependencies.settle(tx, number, False, 0)
    bundles.release_files(tx, jobs)
    retention.delete_rows(tx, jobs)
    connection.execute("COMMIT")


def become_another(
    connection: sqlite3.Connection,
    new: str,
    skip: int,
    *,
    follow: bool,
    beside: Marks | None = None,
) -> int:
    """Give a copy of a database an identity of its own, and job numbers that were never used, in
    one transaction.

    Args:
        new: the new identity.
        skip: how many job numbers the former server may have used since the copy was made.
        follow: the former server is gone: end what agents hold for it. False: it goes on, and this
            one is a rehearsal, which calls no receivers of webhooks and makes no scheduled jobs.
        beside: of the server whose place it takes, if that is not the one it was copied from, or
            had gone on: its numbers are never given again.

    Returns:
        The number of the next job.
    """
    connection.execute("BEGIN IMMEDIATE")
    was = marks(connection)
    before = [*was.former, *(() if beside is None else (*beside.former, beside.server)), was.server]
    names = list(dict.fromkeys(filter(None, before))) if follow else []
    for key, value in (("server", new), ("former", json.dumps(names))):
        _set(connection, key, value)
    # What it signed is good no more: links, tickets and sessions may have ended since.
    connection.execute("DELETE FROM meta WHERE key IN ('signing_key', 'rehearsal')")
    if not follow:
        _set(connection, "rehearsal", "yes")
        connection.execute(_END_DELIVERIES)
    given = (0, 0) if beside is None else (beside.last_job, beside.last_event)
    for table, numbers, least in (("jobs", skip, given[0]), ("events", 10 * skip, given[1])):
        connection.execute(
            """
            INSERT INTO sqlite_sequence (name, seq) SELECT :table, 0
            WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :table)
            """,
            {"table": table},
        )
        connection.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, ?) + ? WHERE name = ?",
            (least, numbers, table),
        )
    (last,) = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").fetchone()
    connection.execute("COMMIT")
    return int(last) + 1


def _set(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute(
        """
        INSERT INTO meta (key, value) VALUES (?, ?)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
        """,
        (key, value),
    )
