"""The audit trail of a running server: entries are kept together, a few times a second."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import structlog

from server.stages.stage import Core, Stage
from server.store import audit
from server.store.audit import AuditEntry, AuditFilter
from shared.clock import SECOND

log = structlog.get_logger()
_AT_ONCE: Final = 1_000
"""Entries of one transaction."""
_MOST: Final = 20_000
"""Entries in memory: more cannot be kept while the database takes none."""
_REMOVE_EVERY_S: Final = 60.0
_REMOVALS: Final = 20
"""Transactions of one clean-up, so that it does not hold up the entries that come meanwhile."""


class AuditTrail(Stage):
    """Takes entries, and keeps them until they have expired."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._waiting: deque[AuditEntry] = deque()
        self._dropped = 0
        self._writing = asyncio.Lock()
        self._cleaned = self.core.clock.monotonic() - _REMOVE_EVERY_S

    def add(self, entry: AuditEntry) -> None:
        """Take an entry; it is kept at the next write."""
        if len(self._waiting) >= _MOST:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(entry)

    async def write(self) -> int:
        """Keep all that was added. What cannot be kept now is kept later. Returns how many."""
        # Who asks may be cancelled; what it takes out is kept or put back all the same.
        return await asyncio.shield(asyncio.create_task(self._write()))

    async def _write(self) -> int:
        async with self._writing:  # whoever waits for an entry may find another writing it
            written = 0
            while waiting := len(self._waiting):
                entries = [self._waiting.popleft() for _ in range(min(_AT_ONCE, waiting))]
                try:
                    await self.core.database.write(audit.keep, entries)
                except Exception as problem:  # noqa: BLE001
                    self._waiting.extendleft(reversed(entries))
                    waiting = len(self._waiting)
                    log.warning("audit.not_written", entries=waiting, why=str(problem))
                    return written
                written += len(entries)
            if self._dropped:
                log.warning("audit.written_late", dropped=self._dropped)
            self._dropped = 0
            return written

    async def run_once(self) -> int:
        """Write, and now and then remove what has expired. Returns how many were written."""
        written = await self.write()
        now, expires_after_s = (
            self.core.clock.monotonic(),
            self.core.settings.server.audit_expires_after,
        )
        if expires_after_s and now - self._cleaned >= _REMOVE_EVERY_S:
            self._cleaned = now
            before = self.core.clock.now() - round(expires_after_s * SECOND)
            for _ in range(_REMOVALS):
                removed = await self.core.database.write(audit.remove, before, _AT_ONCE)
                if removed < _AT_ONCE:
                    break
        return written

    async def page(self, which: AuditFilter, limit: int, before: int) -> Sequence[AuditEntry]:
        """Entries with a lower number, the newest first, up to this moment."""
        await self.write()
        return await self.core.database.read_list(audit.page, which, limit, before)
