"""Sessions of browsers, as all servers of a database know them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from server.domain.jobs import UsedTicket
from server.domain.sessions import SessionRecord
from shared.clock import Micros


class SessionRecords(Protocol):
    """A row for each session that has not expired, also of those that were ended."""

    async def changed(self, after: int) -> Sequence[SessionRecord]:
        """Those whose version is higher, in the order of their versions."""
        ...

    async def insert(self, new: SessionRecord, most: int, once: UsedTicket | None) -> bool:
        """Keep a session, and end the oldest ones of its principal where that has more than
        ``most`` then.

        Args:
            once: what it was made by, which is good for one session; False: it was used before,
                and nothing is kept.
        """
        ...

    async def end(self, ids: Collection[str], at: Micros) -> int:
        """End these; returns how many of them had not ended."""
        ...

    async def used(self, uses: Mapping[str, tuple[Micros, str]]) -> None:
        """Keep when and from where each of these sessions was used last; no new version."""
        ...

    async def remove(self, ids: Collection[str]) -> None:
        """Delete their rows."""
        ...
