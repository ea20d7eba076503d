"""Where the audit trail is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.domain.audit import AuditEntry, AuditFilter
from shared.clock import Micros


class AuditRecords(Protocol):
    """Entries, numbered in the order in which they were kept; nobody changes one."""

    async def keep(self, entries: Sequence[AuditEntry]) -> None:
        """All of them in one transaction, or none."""
        ...

    async def page(self, which: AuditFilter, limit: int, before: int) -> Sequence[AuditEntry]:
        """Entries with a lower number than ``before``, the newest first."""
        ...

    async def remove(self, before: Micros, most: int) -> int:
        """Remove entries of an earlier time, ``most`` at most. Returns how many."""
        ...
