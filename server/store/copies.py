"""What a copy of the database says of files, and what makes it another server's database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from server.store import bundles, dependencies, identity, retention, schedules, tokens
from server.store.statements import insert
from shared.clock import Micros
from shared.sql import AMONG, Tx, among

LEAST_SKIPPED: Final = 1_000_000
"""Numbers of jobs that are left out at least, where a former server may have given some."""
_ALL: Final = 2**62
_END_DELIVERIES: Final = """
    UPDATE deliveries SET state = 'failed', message = 'a rehearsal sends no webhooks',
        next_at = NULL, ended_at = created_at
    WHERE state = 'pending'
"""


@dataclass(frozen=True, slots=True)
class Marks:
    """Where a database is in its life. None of the numbers ever becomes less.

    Attributes:
        server: the server that made it; empty: no server has opened it yet.
        last_job, last_event: the highest numbers that were given.
        start: the number of the latest start of a server with it.
        former: the servers that it was put in place of.
    """

    server: str
    last_job: int
    last_event: int
    start: int
    former: tuple[str, ...] = ()


def marks(tx: Tx) -> Marks:
    """Those of a database with the schema of now."""
    meta = dict(map(tuple, tx.rows("SELECT key, value FROM meta")))
    given = dict(map(tuple, tx.rows("SELECT name, seq FROM sqlite_sequence")))
    return Marks(
        server=meta.get("server", ""),
        former=tuple(json.loads(meta.get("former", "[]"))),
        last_job=given.get("jobs", 0),
        last_event=given.get("events", 0),
        start=int(meta.get("start", 0)),
    )


def live_tokens(tx: Tx, now: Micros) -> list[tuple[str, str]]:
    """Id and name of each token that is good, the oldest first."""
    live = tokens.page(tx, tokens.TokenFilter(live_at=now), _ALL, None)
    return [(one.id, one.name) for one in reversed(live)]


def leave_out(connection: sqlite3.Connection, job_ids: Iterable[int]) -> None:
    """Take jobs, and schedules (numbers below 0), out of a copy, in one transaction."""
    tx, left_out = Tx(connection), set(job_ids)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("PRAGMA defer_foreign_keys=ON")  # until all of them are gone
        sql = f"SELECT id FROM jobs WHERE parent_id {AMONG}"  # noqa: S608 - no user input
        left_out |= {row["id"] for row in tx.rows(sql, among(left_out))}
        jobs = sorted(number for number in left_out if number > 0)
        for number in left_out.difference(jobs):
            schedules.delete(tx, -number)
        for number in jobs:
            dependencies.settle(tx, number, False, 0)
        bundles.release_files(tx, jobs)
        retention.delete_rows(tx, jobs)


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
    tx = Tx(connection)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        was = marks(tx)
        others = () if beside is None else (*beside.former, beside.server)
        names = filter(None, (*was.former, *others, was.server)) if follow else ()
        identity.put(tx, "server", new)
        identity.put(tx, "former", json.dumps(list(dict.fromkeys(names))))
        # What it signed is good no more: links, tickets and sessions may have ended since.
        tx.rows("DELETE FROM meta WHERE key IN ('signing_key', 'rehearsal')")
        if not follow:
            identity.put(tx, "rehearsal", "yes")
            tx.rows(_END_DELIVERIES)
        last_job, last_event = was.last_job, was.last_event
        if beside is not None:
            last_job = max(last_job, beside.last_job)
            last_event = max(last_event, beside.last_event)
        for table, last in (("jobs", last_job + skip), ("events", last_event + 10 * skip)):
            tx.rows("DELETE FROM sqlite_sequence WHERE name = :table", {"table": table})
            insert(tx, "sqlite_sequence", {"name": table, "seq": last})
    return last_job + skip + 1
