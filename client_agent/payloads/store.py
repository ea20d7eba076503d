"""The payloads: every change of state is a conditional write that takes the next change number.

Change numbers come from one sequence that never restarts. One writer commits in the order of the
numbers: whoever has seen number N has seen every change up to N.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from prometheus_client.registry import Collector

from client_agent.payloads import attempt_keys
from client_agent.payloads.attempt_keys import Caller
from client_agent.payloads.payload import (
    ENDED,
    FIRST,
    INSERT,
    NEXT,
    NewPayload,
    Outcome,
    Payload,
    added,
    from_row,
)
from client_agent.payloads.reads import BATCH as BATCH
from client_agent.payloads.reads import PayloadReads
from shared.clock import SECOND, Clock, Micros
from shared.ids import NO_START, AttemptKey, Start
from shared.metrics import counter
from shared.sql import AMONG, Row, Tx, among
from shared.sqlite.database import Database
from shared.sqlite.files import DatabaseUnavailable, Migration
from shared.wakeups import Wakeups
from shared.wire import PayloadState

_1: Final[Migration] = (
    """
    CREATE TABLE payloads (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        server TEXT,
        key TEXT,
        job_id INTEGER,
        attempt INTEGER,
        -- What its server ordered, and where its bundle is, as JSON.
        given TEXT NOT NULL,
        state TEXT NOT NULL,
        changed INTEGER NOT NULL,
        acknowledged INTEGER NOT NULL DEFAULT 0,
        loc TEXT NOT NULL DEFAULT '',
        pid INTEGER NOT NULL DEFAULT 0,
        enforcement TEXT NOT NULL DEFAULT '{}',
        -- How it ended, as JSON.
        outcome TEXT,
        created_at INTEGER NOT NULL,
        started_at INTEGER,
        ended_at INTEGER,
        cleaned_at INTEGER,
        UNIQUE (server, key)
    ) STRICT
    """,
    "CREATE INDEX payloads_of_job ON payloads (server, job_id, attempt)",
    # Acknowledged payloads are looked up only by their keys, so these indexes stay small.
    "CREATE INDEX payloads_told ON payloads (changed) WHERE acknowledged = 0",
    "CREATE INDEX payloads_live ON payloads (id) WHERE ended_at IS NULL",
    """
    CREATE INDEX payloads_kept ON payloads (ended_at)
        WHERE ended_at IS NOT NULL AND cleaned_at IS NULL
    """,
    "CREATE INDEX payloads_cleaned ON payloads (cleaned_at) WHERE cleaned_at IS NOT NULL",
    """
    CREATE TABLE refusals (
        server TEXT NOT NULL,
        key TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (server, key)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX refusals_of_job ON refusals (server, job_id, attempt)",
    # Change numbers continue from here, even if the row with the highest was removed.
    "CREATE TABLE sequence (value INTEGER NOT NULL) STRICT",
    "INSERT INTO sequence (value) VALUES (0)",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    # Small results, of payloads that nobody has acknowledged.
    "CREATE TABLE results (payload_id INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT",
    # The latest start that was seen of each server.
    """
    CREATE TABLE starts (
        server TEXT PRIMARY KEY,
        number INTEGER NOT NULL,
        id TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
)

MIGRATIONS: Final = (_1,)


async def open_database(path: Path) -> Database:
    """Open or make it, with the schema of now. Raises DatabaseUnavailable, NewerSchema, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return await Database.open(path, MIGRATIONS)


_TOMBSTONE: Final = """
    state = 'Cleaned', changed = :changed, cleaned_at = coalesce(cleaned_at, :now),
    outcome = json_remove(outcome, '$.stderr_tail', '$.result', '$.live', '$.retry_later')
"""
"""Makes a tombstone of a row: it says only that the attempt was here, and how it ended."""


def _due(tx: Tx, before: Micros, limit: int) -> list[int]:
    """Ids of the payloads that ended before that time and are not cleaned yet, oldest first."""
    rows = tx.rows(
        """
        SELECT id FROM payloads WHERE ended_at <= :before AND cleaned_at IS NULL
        ORDER BY ended_at LIMIT :limit
        """,
        {"before": before, "limit": limit},
    )
    return [row["id"] for row in rows]


def _drop_results(tx: Tx, ids: Sequence[int]) -> list[int]:
    """Delete the results that are rows. Returns the other ids, whose results may be files."""
    statement = f"DELETE FROM results WHERE payload_id {AMONG} RETURNING payload_id"  # noqa: S608 - fixed words
    rows = tx.rows(statement, among(ids))
    dropped = {row["payload_id"] for row in rows}
    return [one for one in ids if one not in dropped]


def _clean(tx: Tx, payload_id: int, changed: int, now: Micros) -> Payload:
    """Make a tombstone of a payload."""
    rows = tx.rows(
        f"UPDATE payloads SET {_TOMBSTONE} WHERE id = :id RETURNING *",  # noqa: S608 - fixed words
        {"id": payload_id, "changed": changed, "now": now},
    )
    return from_row(rows[0])


def _acknowledge(tx: Tx, ids: Sequence[int], changed: int, now: Micros) -> None:
    """Make unlisted tombstones of ended payloads."""
    tx.rows(
        f"UPDATE payloads SET {_TOMBSTONE}, acknowledged = 1, "  # noqa: S608 - names
        "given = json_set(given, '$.user_id', '') "
        f"WHERE id {AMONG}",
        among(ids) | {"changed": changed, "now": now},
    )


def _prune(tx: Tx, before: Micros, limit: int) -> list[int]:
    """Remove tombstones that are older; returns their ids."""
    rows = tx.rows(
        """
        DELETE FROM payloads WHERE id IN (
            SELECT id FROM payloads WHERE cleaned_at <= :before LIMIT :limit
        ) RETURNING id
        """,
        {"before": before, "limit": limit},
    )
    return [row["id"] for row in rows]


class Payloads(PayloadReads):
    """The store of payloads, opened by :meth:`open`; the database is closed by its owner.

    Attributes:
        wakeups: notified after each commit that changed a payload; not when one is added.
    """

    def __init__(self, database: Database, clock: Clock, last: int) -> None:
        super().__init__(database, last)
        self._clock, self._last = clock, last
        self.wakeups = Wakeups()
        self._ends = counter(
            "ferryman_attempts_ended", "Attempts that ended, and why.", "state", "reason"
        )

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """Of what has ended, for a registry of metrics."""
        return (self._ends,)

    @classmethod
    async def open(cls, database: Database, clock: Clock) -> Payloads:
        """Continue the sequence of change numbers."""
        rows = await database.rows(
            "SELECT (SELECT max(value) FROM sequence) AS floor,"
            " (SELECT max(changed) FROM payloads) AS highest"
        )
        return cls(database, clock, max(rows[0]["floor"] or 0, rows[0]["highest"] or 0))

    async def highest_id(self) -> int:
        """The highest id that it has ever given to a payload; 0: it is new."""
        rows = await self._database.rows("SELECT seq FROM sqlite_sequence WHERE name = 'payloads'")
        return int(rows[0]["seq"]) if rows else 0

    async def agent_id(self, new: str) -> str:
        """The agent's own id, by which servers recognize it under any name and address. At the
        first start ``new`` becomes the id and is stored."""
        rows = await self._database.rows("SELECT value FROM meta WHERE key = 'agent'")
        if rows:
            return str(rows[0]["value"])
        statement = "INSERT INTO meta (key, value) VALUES ('agent', :new)"
        await self._database.write(lambda tx: tx.rows(statement, {"new": new}))
        return new

    @property
    def seq(self) -> int:
        """The highest change number that is committed."""
        return self._committed

    async def problem(self) -> str | None:
        """Why the database cannot be used; None: it can."""
        if self._database.failure is None:
            return None
        try:  # it may have recovered
            await self._database.probe()
        except DatabaseUnavailable as problem:
            return str(problem)
        failure = self._database.failure
        return None if failure is None else str(failure)

    # -- accepting

    async def add(self, new: NewPayload, start: Start = NO_START) -> tuple[Payload, bool]:
        """Store a new attempt as Prepared. Returns the payload, and whether it is new: a known
        key gives the payload that it has. Raises DigestMismatch, KeyRefused, StaleAttempt or
        StaleStart."""

        def change(tx: Tx) -> tuple[Payload, bool]:
            if new.server is not None and new.key is not None:
                attempt_keys.check(tx, new.server, start)
                key = AttemptKey.parse(new.key)
                known = attempt_keys.look_up(tx, new.server, key, new.bundle_digest)
                if known is not None:
                    return known, False
            changed, now = self._next(), self._clock.now()
            stored = {"state": FIRST, "changed": changed, "now": now}
            rows = tx.rows(INSERT, new.params() | stored)
            own = {"id": rows[0]["id"], "state": FIRST, "changed": changed}
            payload = added(new, **own, created_at=now)
            # Nobody is woken: its server gets it as the answer.
            tx.after(functools.partial(self._keep, payload))
            return payload, True

        return await self._database.write(change)

    async def look_up(
        self, server: str, key: AttemptKey, digest: str, start: Start = NO_START
    ) -> Payload | None:
        """The payload under a key; None: :meth:`add` would store a new one. Raises DigestMismatch,
        KeyRefused, StaleAttempt or StaleStart."""

        def change(tx: Tx) -> Payload | None:
            attempt_keys.check(tx, server, start)
            return attempt_keys.look_up(tx, server, key, digest)

        return await self._database.write(change)

    async def settle(self, server: str, key: AttemptKey, start: Start = NO_START) -> Payload | None:
        """The payload under a key; None: there is none, and from now on the key is refused. Raises
        StaleStart."""

        def change(tx: Tx) -> Payload | None:
            attempt_keys.check(tx, server, start)
            payload = attempt_keys.find(tx, server, key)
            if payload is None:
                attempt_keys.refuse(tx, server, key, self._clock.now())
            return payload

        return await self._database.write(change)

    async def check_start(self, server: str, start: Start) -> None:
        """Raises StaleStart."""
        await self._database.write(lambda tx: attempt_keys.check(tx, server, start))

    # -- changes of state

    async def start(
        self, payload_id: int, pid: int, loc: str, enforcement: dict[str, str]
    ) -> Payload | None:
        """Prepared → Running; None: it was no longer Prepared, so it must not start."""
        values = {"pid": pid, "loc": loc}
        return await self._move(
            payload_id,
            PayloadState.PREPARED,
            PayloadState.RUNNING,
            "pid = :pid, loc = :loc, enforcement = :enforcement, started_at = :now",
            values | {"enforcement": json.dumps(enforcement)},
            lambda row: {**values, "enforcement": enforcement, "started_at": row["started_at"]},
        )

    async def end(
        self, payload_id: int, before: PayloadState, outcome: Outcome, result: bytes | None = None
    ) -> Payload | None:
        """Store how it ended; None: it was no longer in the state ``before``. ``result``: if it is
        small; a large one is a file by now."""
        ended = await self._move(
            payload_id,
            before,
            outcome.state,
            """
            outcome = :outcome, pid = 0, given = json_remove(given, '$.env', '$.meta', '$.array'),
            ended_at = coalesce(:ended_at, :now)
            """,
            {"outcome": replace(outcome, ended_at=None).stored(), "ended_at": outcome.ended_at},
            lambda row: {
                "ended_at": row["ended_at"],
                "pid": 0,
                "env": {},
                "meta": "",
                "array": None,
                "outcome": replace(outcome, ended_at=None),
            },
            result,
        )
        if ended is not None:
            self._ends.labels(outcome.state, outcome.reason or "").inc()
        return ended

    async def check_caller(self, payload_id: int, caller: Caller) -> None:
        """Whether the caller may end or forget the payload, if there is one. Raises NoSuchPayload
        or StaleStart."""
        await self._database.write(lambda tx: attempt_keys.check_payload(tx, payload_id, caller))

    async def acknowledge(
        self, keys: Mapping[int, str | None], caller: Caller
    ) -> tuple[dict[int, str], list[int]]:
        """Their server needs them no more: only tombstones stay. Repeats are harmless. Returns the
        codes of those that are kept, and whose results are files, to be removed. Raises StaleStart.

        Args:
            keys: payload -> its key; None: whatever payload has the number.
        """

        def change(tx: Tx) -> tuple[dict[int, str], list[int]]:
            ended, refused = attempt_keys.split_ended(tx, keys, caller)
            changed = self._next()
            _acknowledge(tx, ended, changed, self._clock.now())
            tx.after(functools.partial(self._forget, ended, changed))
            return refused, _drop_results(tx, ended)

        return await self._database.write(change)

    def _forget(self, payload_ids: Sequence[int], changed: int) -> None:
        """To be called after the commit of a change that has taken them away."""
        if payload_ids:
            self._committed = max(self._committed, changed)
        for payload_id in payload_ids:
            self._recent.forget(payload_id)

    async def expire(self, retention_s: float) -> list[int]:
        """Ended payloads that nobody acknowledged in time become Cleaned, without their results; at
        most one batch. Returns their ids."""
        now = self._clock.now()
        before = now - round(retention_s * SECOND)

        def change(tx: Tx) -> list[int]:
            due = _due(tx, before, BATCH)
            for payload_id in due:
                cleaned = _clean(tx, payload_id, self._next(), now)
                tx.after(functools.partial(self._publish, cleaned))
            _drop_results(tx, due)
            return due

        return await self._database.write(change)

    async def prune(self, retention_s: float) -> bool:
        """Remove older tombstones, at most one batch, and refusals, and from the disk what was
        deleted before, some of it; returns whether there may be more."""
        now = self._clock.now()

        def change(tx: Tx) -> list[int]:
            tx.rows(
                "UPDATE sequence SET value = :value WHERE value < :value", {"value": self._last}
            )
            attempt_keys.prune(tx, now, retention_s)
            removed = _prune(tx, now - round(retention_s * SECOND), BATCH)
            tx.after(functools.partial(self._forget, removed, 0))
            return removed

        await self._database.empty_log()
        more = await self._database.maintain()
        return bool(await self._database.write(change)) or more

    # -- change numbers

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _keep(self, payload: Payload) -> None:
        """To be called after the commit of a change, in the order of changes."""
        self._committed = max(self._committed, payload.changed)
        self._recent.put(payload)

    def _publish(self, payload: Payload) -> None:
        """As :meth:`_keep`, and wake who waits."""
        self._keep(payload)
        self.wakeups.notify(payload.id, ended=payload.state in ENDED)

    async def _move(
        self,
        payload_id: int,
        before: PayloadState,
        to: PayloadState,
        sets: str,
        params: dict[str, Any],
        changes: Callable[[Row], dict[str, Any]],
        result: bytes | None = None,
    ) -> Payload | None:
        """Change the state.

        Args:
            changes: what :func:`from_row` would say of the row, where that is new.
            result: to be stored with it.
        """
        if to not in NEXT[before]:
            raise ValueError(f"{before} does not become {to}")

        moved = list[Payload]()

        def committed(row: Row) -> None:
            known = self._recent.get(payload_id)
            new = {"state": to, "changed": row["changed"], **changes(row)}
            moved.append(from_row(row) if known is None else replace(known, **new))
            self._publish(moved[0])

        def change(tx: Tx) -> None:
            rows = tx.rows(
                f"UPDATE payloads SET state = :to, changed = :changed, {sets} "  # noqa: S608 - fixed words
                "WHERE id = :id AND state = :before RETURNING *",
                params
                | {
                    "id": payload_id,
                    "before": before,
                    "to": to,
                    "changed": self._next(),
                    "now": self._clock.now(),
                },
            )
            if rows:
                tx.after(functools.partial(committed, rows[0]))
            if rows and result is not None:
                statement = "INSERT INTO results (payload_id, bytes) VALUES (:id, :bytes)"
                tx.rows(statement, {"id": payload_id, "bytes": result})

        await self._database.write(change)
        return moved[0] if moved else None
