"""The payloads: every move is a conditional write that takes the next change number.

Change numbers come from one sequence that only grows, restarts included. One writer commits in the
order of the numbers, so whoever has seen number N has seen everything up to N.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from client_agent.payloads import attempt_keys, cleaning, leases, states
from client_agent.payloads.errors import NoSuchPayload, NotEnded
from client_agent.payloads.leases import Caller
from client_agent.payloads.payload import NewPayload, Outcome, Payload, payload
from shared.clock import SECOND, Clock
from shared.ids import AttemptKey
from shared.sqlite.database import Database
from shared.sqlite.transactions import Row, Transaction
from shared.wakeups import Wakeups
from shared.wire import PayloadState

BATCH: Final = 200
"""Rows that are read, or changed in one sweep's transaction, at once."""
_ANYBODY: Final = Caller()
_ENDED: Final = ", ".join(f"'{state.value}'" for state in sorted(states.ENDED))


class Payloads:
    """All SQL of the agent. Opened by :meth:`open`; the database is closed by its owner.

    Attributes:
        wakeups: notified after each commit that changed a payload.
    """

    def __init__(self, database: Database, clock: Clock, last: int) -> None:
        self._database, self._clock = database, clock
        self._last = last
        self._committed = last
        self.wakeups = Wakeups()

    @classmethod
    async def open(cls, database: Database, clock: Clock) -> Payloads:
        """Continue the sequence where it was."""
        found = await database.rows(
            """
            SELECT (SELECT max(value) FROM sequence) AS floor,
                   (SELECT max(changed) FROM payloads) AS highest
            """
        )
        return cls(database, clock, max(found[0]["floor"] or 0, found[0]["highest"] or 0))

    @property
    def seq(self) -> int:
        """Everything up to this number is durable and can be read."""
        return self._committed

    @property
    def trouble(self) -> str | None:
        """Why the database cannot be used; None while it can."""
        return None if self._database.failure is None else str(self._database.failure)

    # -- taking

    async def add(self, new: NewPayload) -> tuple[Payload, bool]:
        """Take an attempt as Prepared.

        Returns:
            The payload, and whether it is new: a key that is known gives the payload that it has.

        Raises:
            DigestMismatch, KeyRefused, StaleAttempt, StaleLease
        """

        async def change(tx: Transaction) -> tuple[Payload, bool]:
            if new.server is not None and new.key is not None:
                await leases.check(tx, new.server, new.lease)
                known = await attempt_keys.known(tx, new.server, new.key, new.bundle_digest)
                if known is not None:
                    return known, False
            rows = await tx.rows(
                """
                INSERT INTO payloads (server, key, job_id, attempt, service, user_id, timeout_s,
                                      limits, bundle_file, bundle_size, bundle_digest, state,
                                      changed, created_at)
                VALUES (:server, :key, :job_id, :attempt, :service, :user_id, :timeout_s,
                        :limits, :bundle_file, :bundle_size, :bundle_digest, :state,
                        :changed, :now)
                RETURNING *
                """,
                new.params()
                | {
                    "state": states.FIRST,
                    "changed": self._next(),
                    "now": self._clock.now(),
                },
            )
            return payload(rows[0]), True

        added, fresh = await self._database.write(change)
        if fresh:
            self._tell(added)
        return added, fresh

    async def known(
        self, server: str, key: AttemptKey, digest: str, lease: int = 0
    ) -> Payload | None:
        """What :meth:`add` would answer without making anything; None: it would take the attempt.

        Raises:
            DigestMismatch, KeyRefused, StaleAttempt, StaleLease
        """

        async def change(tx: Transaction) -> Payload | None:
            await leases.check(tx, server, lease)
            return await attempt_keys.known(tx, server, key, digest)

        return await self._database.write(change)

    async def settle(self, server: str, key: AttemptKey, lease: int = 0) -> Payload | None:
        """The payload under a key; or None, and from now on the key is refused.

        Raises:
            StaleLease
        """

        async def change(tx: Transaction) -> Payload | None:
            await leases.check(tx, server, lease)
            there = await attempt_keys.find(tx, server, key)
            if there is None:
                await attempt_keys.refuse(tx, server, key, self._clock.now())
            return there

        return await self._database.write(change)

    # -- moving

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
        """Write down how it ended; None: it was no longer in ``before``."""
        return await self._move(
            payload_id,
            before,
            outcome.state,
            """
            reason = :reason, message = :message, exit_code = :exit_code, pid = 0,
            interrupted = :interrupted, stderr_tail = :stderr_tail, usage = :usage,
            warnings = :warnings, result_size = :size, result_sha256 = :sha256,
            ended_at = coalesce(:ended_at, :now)
            """,
            outcome.params(),
        )

    async def check(self, payload_id: int, caller: Caller) -> None:
        """Whether the caller may end or forget the payload, if there is one.

        Raises:
            NoSuchPayload, StaleLease
        """
        await self._database.write(lambda tx: leases.check_payload(tx, payload_id, caller))

    async def acknowledge(self, payload_id: int, caller: Caller = _ANYBODY) -> None:
        """Its server has all it wants: only a tombstone stays. Repeats are harmless.

        Raises:
            NoSuchPayload, NotEnded, StaleLease
        """

        async def change(tx: Transaction) -> Sequence[Row]:
            await leases.check_payload(tx, payload_id, caller)
            return await tx.rows(
                f"UPDATE payloads SET {cleaning.SETS}, acknowledged = 1 "  # noqa: S608 - fixed words
                f"WHERE id = :id AND state IN ({_ENDED}) RETURNING changed",
                {"id": payload_id, "changed": self._next(), "now": self._clock.now()},
            )

        moved = await self._database.write(change)
        if moved:
            self._committed = max(self._committed, moved[0]["changed"])
            return
        there = await self.find(payload_id)
        if there is not None:
            raise NotEnded(payload_id, there.state)

    async def expire(self, retention_s: float) -> list[int]:
        """Ended payloads that nobody acknowledged in time become Cleaned; at most one batch.

        Returns:
            Their ids.
        """
        now = self._clock.now()
        before = now - round(retention_s * SECOND)

        async def change(tx: Transaction) -> list[Payload]:
            due = await cleaning.due(tx, before, BATCH)
            return [await cleaning.clean(tx, one, self._next(), now) for one in due]

        cleaned = await self._database.write(change)
        for one in cleaned:
            self._tell(one)
        return [one.id for one in cleaned]

    async def prune(self, retention_s: float) -> int:
        """Forget tombstones and refusals that are older; at most one batch. How many."""
        now = self._clock.now()

        async def change(tx: Transaction) -> int:
            await tx.rows(
                "UPDATE sequence SET value = :value WHERE value < :value", {"value": self._last}
            )
            pruned = await cleaning.prune(tx, now - round(retention_s * SECOND), BATCH)
            await attempt_keys.forget(tx, now, retention_s)
            return pruned

        return await self._database.write(change)

    # -- looking

    async def get(self, payload_id: int) -> Payload:
        """Raises NoSuchPayload."""
        found = await self.find(payload_id)
        if found is None:
            raise NoSuchPayload(payload_id)
        return found

    async def find(self, payload_id: int) -> Payload | None:
        rows = await self._database.rows(
            "SELECT * FROM payloads WHERE id = :id", {"id": payload_id}
        )
        return payload(rows[0]) if rows else None

    async def live(self) -> list[Payload]:
        """Those that have not ended, oldest first."""
        rows = await self._database.rows(
            "SELECT * FROM payloads WHERE ended_at IS NULL ORDER BY id"
        )
        return [payload(row) for row in rows]

    async def changed_after(
        self, after: int, server: str | None, limit: int = BATCH
    ) -> Sequence[Payload]:
        """Payloads not acknowledged whose latest change is later, in the order of the changes."""
        rows = await self._database.rows(
            f"""
            SELECT * FROM payloads WHERE changed > :after AND acknowledged = 0
            {"AND server = :server" if server is not None else ""}
            ORDER BY changed LIMIT :limit
            """,  # noqa: S608 - fixed words
            {"after": after, "server": server, "limit": limit},
        )
        return [payload(row) for row in rows]

    async def files(self) -> tuple[set[str], set[int]]:
        """Bundle files that are still to be unpacked, and ids of payloads that have a result."""
        bundles = await self._database.rows(
            "SELECT bundle_file FROM payloads WHERE ended_at IS NULL"
        )
        results = await self._database.rows(
            """
            SELECT id FROM payloads WHERE ended_at IS NOT NULL AND cleaned_at IS NULL
            AND result_sha256 IS NOT NULL
            """
        )
        return {row["bundle_file"] for row in bundles}, {row["id"] for row in results}

    async def probe(self) -> None:
        """Make a durable change of nothing.

        Raises:
            DatabaseUnavailable
        """
        await self._database.write(lambda tx: tx.rows("UPDATE sequence SET value = value"))

    # -- the sequence

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _tell(self, moved: Payload) -> None:
        self._committed = max(self._committed, moved.changed)
        self.wakeups.notify(moved.id, ended=moved.state in states.ENDED)

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
        moved = payload(rows[0])
        self._tell(moved)
        return moved
