"""The payloads: every change of state is a conditional write that takes the next change number.

Change numbers come from one sequence that never restarts. One writer commits in the order of the
numbers: whoever has seen number N has seen every change up to N.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Final

from prometheus_client.registry import Collector

from client_agent.payloads import attempt_keys, cleaning, leases, states
from client_agent.payloads.errors import NoSuchPayload, NotEnded
from client_agent.payloads.leases import Caller
from client_agent.payloads.payload import INSERT, NewPayload, Outcome, Payload, from_row
from shared.clock import SECOND, Clock
from shared.ids import AttemptKey
from shared.metrics import counter
from shared.sql import Transaction
from shared.sqlite.database import Database
from shared.sqlite.errors import DatabaseUnavailable
from shared.wakeups import Wakeups
from shared.wire import PayloadState

BATCH: Final = 200
"""Rows that are read, or changed in one transaction of a sweep, at once."""


class Payloads:
    """The store of payloads, opened by :meth:`open`; the database is closed by its owner.

    Attributes:
        wakeups: notified after each commit that changed a payload; not when one is added.
    """

    def __init__(self, database: Database, clock: Clock, last: int) -> None:
        self._database, self._clock = database, clock
        self._last = last
        self._committed = last
        self.wakeups = Wakeups()
        self._ends = counter(
            "ferryman_attempts_ended", "Attempts that ended, and why.", "state", "reason"
        )

    @classmethod
    async def open(cls, database: Database, clock: Clock) -> Payloads:
        """Continue the sequence of change numbers."""
        rows = await database.rows(
            "SELECT (SELECT max(value) FROM sequence) AS floor,"
            " (SELECT max(changed) FROM payloads) AS highest"
        )
        return cls(database, clock, max(rows[0]["floor"] or 0, rows[0]["highest"] or 0))

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
            await self._database.write(lambda tx: tx.rows("UPDATE sequence SET value = value"))
        except DatabaseUnavailable as problem:
            return str(problem)
        return None

    # -- accepting

    async def add(self, new: NewPayload) -> tuple[Payload, bool]:
        """Store a new attempt as Prepared. Returns the payload, and whether it is new: a known
        key gives the payload that it has. Raises DigestMismatch, KeyRefused, StaleAttempt or
        StaleLease."""

        async def change(tx: Transaction) -> tuple[Payload, bool]:
            if new.server is not None and new.key is not None:
                await leases.check(tx, new.server, new.lease)
                known = await attempt_keys.look_up(tx, new.server, new.key, new.bundle_digest)
                if known is not None:
                    return known, False
            rows = await tx.rows(
                INSERT,
                new.params()
                | {"state": states.FIRST, "changed": self._next(), "now": self._clock.now()},
            )
            return from_row(rows[0]), True

        payload, created = await self._database.write(change)
        if created:  # nobody is woken: its server gets it as the answer
            self._committed = max(self._committed, payload.changed)
        return payload, created

    async def look_up(
        self, server: str, key: AttemptKey, digest: str, lease: int = 0
    ) -> Payload | None:
        """The payload under a key; None: :meth:`add` would store a new one. Raises DigestMismatch,
        KeyRefused, StaleAttempt or StaleLease."""

        async def change(tx: Transaction) -> Payload | None:
            await leases.check(tx, server, lease)
            return await attempt_keys.look_up(tx, server, key, digest)

        return await self._database.write(change)

    async def settle(self, server: str, key: AttemptKey, lease: int = 0) -> Payload | None:
        """The payload under a key; None: there is none, and from now on the key is refused. Raises
        StaleLease."""

        async def change(tx: Transaction) -> Payload | None:
            await leases.check(tx, server, lease)
            payload = await attempt_keys.find(tx, server, key)
            if payload is None:
                await attempt_keys.refuse(tx, server, key, self._clock.now())
            return payload

        return await self._database.write(change)

    # -- changes of state

    async def start(
        self, payload_id: int, pid: int, loc: str, enforcement: dict[str, str]
    ) -> Payload | None:
        """Prepared → Running; None: it was no longer Prepared, so it must not start."""
        return await self._move(
            payload_id,
            PayloadState.PREPARED,
            PayloadState.RUNNING,
            "pid = :pid, loc = :loc, enforcement = :enforcement, started_at = :now",
            {"pid": pid, "loc": loc, "enforcement": json.dumps(enforcement)},
        )

    async def end(self, payload_id: int, before: PayloadState, outcome: Outcome) -> Payload | None:
        """Store how it ended; None: it was no longer in the state ``before``."""
        ended = await self._move(
            payload_id,
            before,
            outcome.state,
            """
            reason = :reason, message = :message, exit_code = :exit_code, pid = 0,
            interrupted = :interrupted, stderr_tail = :stderr_tail, usage = :usage,
            warnings = :warnings, result_size = :size, result_sha256 = :sha256,
            stdout_bytes = :stdout_bytes, stderr_bytes = :stderr_bytes,
            live = :live, retry_later = :retry_later, children = :children, env = '{}',
            ended_at = coalesce(:ended_at, :now)
            """,
            outcome.params(),
        )
        if ended is not None:
            self._ends.labels(outcome.state, outcome.reason or "").inc()
        return ended

    async def check_caller(self, payload_id: int, caller: Caller) -> None:
        """Whether the caller may end or forget the payload, if there is one. Raises NoSuchPayload
        or StaleLease."""
        await self._database.write(lambda tx: leases.check_payload(tx, payload_id, caller))

    async def acknowledge(self, payload_id: int, caller: Caller) -> None:
        """Its server needs it no more: only a tombstone stays. Repeats are harmless. Raises
        NoSuchPayload, NotEnded or StaleLease."""

        async def change(tx: Transaction) -> int | None:
            await leases.check_payload(tx, payload_id, caller)
            return await cleaning.acknowledge(tx, payload_id, self._next(), self._clock.now())

        changed = await self._database.write(change)
        if changed is not None:
            self._committed = max(self._committed, changed)
            return
        payload = await self.find(payload_id)
        if payload is not None:
            raise NotEnded(payload_id, payload.state)

    async def expire(self, retention_s: float) -> list[int]:
        """Ended payloads that nobody acknowledged in time become Cleaned; at most one batch.
        Returns their ids."""
        now = self._clock.now()
        before = now - round(retention_s * SECOND)

        async def change(tx: Transaction) -> list[Payload]:
            due = await cleaning.due(tx, before, BATCH)
            return [await cleaning.clean(tx, one, self._next(), now) for one in due]

        cleaned = await self._database.write(change)
        for one in cleaned:
            self._publish(one)
        return [one.id for one in cleaned]

    async def prune(self, retention_s: float) -> int:
        """Remove older tombstones, at most one batch, and refusals, and from the disk what was
        deleted before; returns how many tombstones."""
        now = self._clock.now()

        async def change(tx: Transaction) -> int:
            await tx.rows(
                "UPDATE sequence SET value = :value WHERE value < :value", {"value": self._last}
            )
            await attempt_keys.prune(tx, now, retention_s)
            return await cleaning.prune(tx, now - round(retention_s * SECOND), BATCH)

        await self._database.empty_log()
        return await self._database.write(change)

    # -- reading

    async def get(self, payload_id: int) -> Payload:
        """Raises NoSuchPayload."""
        payload = await self.find(payload_id)
        if payload is None:
            raise NoSuchPayload(payload_id)
        return payload

    async def find(self, payload_id: int) -> Payload | None:
        rows = await self._database.rows(
            "SELECT * FROM payloads WHERE id = :id", {"id": payload_id}
        )
        return from_row(rows[0]) if rows else None

    async def find_all(self, payload_ids: Collection[int]) -> dict[int, Payload]:
        """Those of the ids that there are; at most some hundreds."""
        params = {f"v{n}": value for n, value in enumerate(payload_ids)}
        names = ", ".join(f":{name}" for name in params)
        rows = await self._database.rows(
            f"SELECT * FROM payloads WHERE id IN ({names})",  # noqa: S608 - placeholders
            params,
        )
        return {row["id"]: from_row(row) for row in rows}

    async def held_for_servers(self) -> bool:
        """Whether a Ferryman server has not acknowledged all that it has here."""
        rows = await self._database.rows(
            "SELECT 1 FROM payloads WHERE acknowledged = 0 AND server IS NOT NULL"
            " AND state != 'Cleaned' LIMIT 1"
        )
        return bool(rows)

    async def live(self) -> list[Payload]:
        """Payloads that have not ended, oldest first."""
        rows = await self._database.rows(
            "SELECT * FROM payloads WHERE ended_at IS NULL ORDER BY id"
        )
        return [from_row(row) for row in rows]

    async def changed_after(
        self, after: int, server: str | None, limit: int = BATCH
    ) -> Sequence[Payload]:
        """Payloads, not acknowledged, whose latest change is later; in the order of changes."""
        rows = await self._database.rows(
            f"""
            SELECT * FROM payloads WHERE changed > :after AND acknowledged = 0
            {"AND server = :server" if server is not None else ""}
            ORDER BY changed LIMIT :limit
            """,  # noqa: S608 - fixed words
            {"after": after, "server": server, "limit": limit},
        )
        return [from_row(row) for row in rows]

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """Of what has ended, for a registry of metrics."""
        return (self._ends,)

    async def counts(self) -> dict[PayloadState, int]:
        """How many there are in each state, of those that no server has acknowledged."""
        rows = await self._database.rows(
            "SELECT state, count(*) AS payloads FROM payloads WHERE acknowledged = 0 GROUP BY state"
        )
        return {PayloadState(row["state"]): row["payloads"] for row in rows}

    async def with_result(self) -> set[int]:
        """Ids of the payloads that have a result."""
        rows = await self._database.rows(
            "SELECT id FROM payloads WHERE ended_at IS NOT NULL AND cleaned_at IS NULL"
            " AND result_sha256 IS NOT NULL"
        )
        return {row["id"] for row in rows}

    # -- change numbers

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _publish(self, payload: Payload) -> None:
        """To be called after the commit of a change."""
        self._committed = max(self._committed, payload.changed)
        self.wakeups.notify(payload.id, ended=payload.state in states.ENDED)

    async def _move(
        self,
        payload_id: int,
        before: PayloadState,
        to: PayloadState,
        sets: str,
        params: dict[str, Any],
    ) -> Payload | None:
        if to not in states.NEXT[before]:
            raise ValueError(f"{before} does not become {to}")
        rows = await self._database.write(
            lambda tx: tx.rows(
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
        )
        if not rows:
            return None
        payload = from_row(rows[0])
        self._publish(payload)
        return payload
