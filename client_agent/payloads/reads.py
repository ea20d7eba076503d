"""Reads of the payloads: what has changed lately from memory, the rest from the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Final

from client_agent.payloads.errors import NoSuchPayload
from client_agent.payloads.payload import Payload, from_row
from shared.sql import AMONG, among
from shared.sqlite.database import Database
from shared.wire import PayloadState

KEPT: Final = 200
"""Payloads; one may have some 100 KB of live values."""


class RecentPayloads:
    """The latest state of each payload that changed since the start, but for those that were
    acknowledged, and the oldest, if there are too many.

    Args:
        last: number of the latest change before.
    """

    def __init__(self, last: int) -> None:
        self._complete_after = last
        """Of every later change the payload is here, unless it was acknowledged."""
        self._payloads: dict[int, Payload] = {}
        """In the order of changes."""

    def get(self, payload_id: int) -> Payload | None:
        """None: it is not here; it may be stored all the same."""
        return self._payloads.get(payload_id)

    def put(self, payload: Payload) -> None:
        """To be called with each change, in their order."""
        self._payloads.pop(payload.id, None)
        self._payloads[payload.id] = payload
        if len(self._payloads) > KEPT:
            oldest = self._payloads.pop(next(iter(self._payloads)))
            self._complete_after = oldest.changed

    def forget(self, payload_id: int) -> None:
        """It was acknowledged, or removed."""
        self._payloads.pop(payload_id, None)

    def changed_after(self, after: int, server: str | None, limit: int) -> Sequence[Payload] | None:
        """The oldest of the later changes, in their order; None: some of them may be missing.

        Args:
            server: only payloads of that server; None: of all.
        """
        if after < self._complete_after:
            return None
        later = takewhile(lambda one: one.changed > after, reversed(self._payloads.values()))
        found = [one for one in later if server is None or one.server == server]
        return found[::-1][:limit]


BATCH: Final = 200
"""Rows that are read, or changed in one transaction of a sweep, at once."""


class PayloadReads:
    """The part of :class:`client_agent.payloads.store.Payloads` that reads.

    Args:
        last: number of the latest change.
    """

    def __init__(self, database: Database, last: int) -> None:
        self._database, self._committed = database, last
        self._recent = RecentPayloads(last)

    async def get(self, payload_id: int) -> Payload:
        """Raises NoSuchPayload."""
        payload = await self.find(payload_id)
        if payload is None:
            raise NoSuchPayload(payload_id)
        return payload

    async def find(self, payload_id: int) -> Payload | None:
        return (await self.find_all([payload_id])).get(payload_id)

    async def find_all(self, payload_ids: Collection[int]) -> dict[int, Payload]:
        """Those of the ids that there are; at most some hundreds."""
        found = {one: payload for one in payload_ids if (payload := self._recent.get(one))}
        params = {f"v{one}": one for one in payload_ids if one not in found}
        if params:
            names = ", ".join(f":{name}" for name in params)
            rows = await self._database.rows(
                f"SELECT * FROM payloads WHERE id IN ({names})",  # noqa: S608 - placeholders
                params,
            )
            found |= {row["id"]: from_row(row) for row in rows}
        return found

    async def changed_after(
        self, after: int, server: str | None, limit: int = BATCH
    ) -> Sequence[Payload]:
        """Payloads, not acknowledged, whose latest change is later; in the order of changes."""
        recent = self._recent.changed_after(after, server, limit)
        if recent is not None:
            return recent
        rows = await self._database.rows(
            f"""
            SELECT * FROM payloads WHERE changed > :after AND acknowledged = 0
            {"AND server = :server" if server is not None else ""}
            ORDER BY changed LIMIT :limit
            """,  # noqa: S608 - fixed words
            {"after": after, "server": server, "limit": limit},
        )
        if rows and rows[-1]["changed"] > self._committed:
            # Committed a moment ago, and not known here yet: what is asked next must not be older.
            await self._database.write(lambda tx: tx.rows("SELECT 1"))
        return [from_row(row) for row in rows]

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

    async def counts(self) -> dict[PayloadState, int]:
        """How many there are in each state, of those that no server has acknowledged."""
        rows = await self._database.rows(
            "SELECT state, count(*) AS payloads FROM payloads WHERE acknowledged = 0 GROUP BY state"
        )
        return {PayloadState(row["state"]): row["payloads"] for row in rows}

    async def results(self, payload_ids: Collection[int]) -> dict[int, bytes]:
        """Those of their results that are rows."""
        rows = await self._database.rows(
            f"SELECT payload_id, bytes FROM results WHERE payload_id {AMONG}",  # noqa: S608 - fixed words
            among(payload_ids),
        )
        return {row["payload_id"]: row["bytes"] for row in rows}

    async def with_result(self) -> set[int]:
        """Ids of the payloads that have a result."""
        rows = await self._database.rows(
            "SELECT id FROM payloads WHERE ended_at IS NOT NULL AND cleaned_at IS NULL"
            " AND json_extract(outcome, '$.result') IS NOT NULL"
        )
        return {row["id"] for row in rows}
