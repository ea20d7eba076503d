"""Whose database it is, and where it is in its life: what it was given when it was made, with the
name that scopes its attempt keys on agents and the secrets that it signs with; the start of each
run; and what makes a copy of it another server's.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from server.store import tokens
from server.store.records import insert
from shared.clock import SECOND, Micros
from shared.ids import Start
from shared.sql import Tx

_KEYS: Final = ("signing_key", "csrf_key", "webhook_key")
LEAST_SKIPPED: Final = 1_000_000
"""Numbers of jobs that are left out at least, where a former server may have given some."""
_ALL: Final = 2**62
_END_DELIVERIES: Final = """
    UPDATE deliveries SET state = 'failed', message = 'a rehearsal sends no webhooks',
        next_at = NULL, ended_at = created_at
    WHERE state = 'pending'
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Attributes:
    server: name that the database was given when it was made.
    former: those of the servers that it was restored in place of.
    start: of this run.
    rehearsal: it is a copy of a server's that goes on.
    signing_key: signs upload tickets and links.
    csrf_key: proves that a form was sent by a page of ours.
    webhook_key: all secrets of webhooks are made from it.
    """

    server: str
    former: tuple[str, ...]
    start: Start
    rehearsal: bool
    signing_key: bytes
    csrf_key: bytes
    webhook_key: bytes


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


def begin(tx: Tx, now: Micros, random: Callable[[int], bytes], above: int = 0) -> Identity:
    """Begin a run of the server; what the database has not been given yet, it is given.

    Args:
        random: so many bytes that nobody can guess.
        above: the number of a start that the database may not know.
    """
    return Identity(
        server=kept(tx, "server", random(16).hex()),
        former=marks(tx).former,
        start=new_start(tx, now, random(8).hex(), above),
        rehearsal=value(tx, "rehearsal") is not None,
        **{name: bytes.fromhex(kept(tx, name, random(32).hex())) for name in _KEYS},
    )


def new_start(tx: Tx, now: Micros, random_id: str, above: int = 0) -> Start:
    """The start of this run of the server: higher than that of any earlier one, and than that of
    an earlier run of a copy of its data folder.
    """
    number = max(int(value(tx, "start") or 0) + 1, above + 1, now // SECOND)
    put(tx, "start", str(number))
    return Start(number, random_id)


def kept(tx: Tx, key: str, candidate: str) -> str:
    """What it has under the key: what is there already, or else the candidate."""
    if (known := value(tx, key)) is not None:
        return known
    put(tx, key, candidate)
    return candidate


def value(tx: Tx, key: str) -> str | None:
    """What the database remembers under a key."""
    rows = tx.rows("SELECT value FROM meta WHERE key = :key", {"key": key})
    return str(rows[0]["value"]) if rows else None


def put(tx: Tx, key: str, value: str) -> None:
    values = {"key": key, "value": value}
    insert(tx, "meta", values, "ON CONFLICT (key) DO UPDATE SET value = :value")


def become_another(
    connection: sqlite3.Connection, skip: int, *, follow: bool, beside: Marks | None = None
) -> int:
    """Give a copy of a database an identity of its own, and job numbers that were never used, in
    one transaction.

    Args:
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
        put(tx, "server", secrets.token_hex(16))
        put(tx, "former", json.dumps(list(dict.fromkeys(names))))
        # What it signed is good no more: links, tickets and sessions may have ended since.
        tx.rows("DELETE FROM meta WHERE key IN ('signing_key', 'rehearsal')")
        if not follow:
            put(tx, "rehearsal", "yes")
            tx.rows(_END_DELIVERIES)
        last_job, last_event = was.last_job, was.last_event
        if beside is not None:
            last_job = max(last_job, beside.last_job)
            last_event = max(last_event, beside.last_event)
        for table, last in (("jobs", last_job + skip), ("events", last_event + 10 * skip)):
            tx.rows("DELETE FROM sqlite_sequence WHERE name = :table", {"table": table})
            insert(tx, "sqlite_sequence", {"name": table, "seq": last})
    return last_job + skip + 1
