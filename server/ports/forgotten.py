"""What is kept of a user beside jobs and schedules."""

from __future__ import annotations

from typing import Protocol

from shared.clock import Micros


class ForgottenRecords(Protocol):
    """Finds and removes it."""

    async def found(self, user: str) -> dict[str, int]:
        """Kind -> rows that there are."""
        ...

    async def end_access(self, user: str, instead: str, at: Micros) -> dict[str, int]:
        """End the user's tokens and sessions, and give them another name; kind -> how many."""
        ...

    async def schedules(self, user: str) -> list[int]: ...

    async def jobs(self, user: str, below: int | None, most: int) -> list[int]:
        """Numbers of its jobs that are no children, the newest first, below a number."""
        ...

    async def remove_rest(self, user: str, instead: str) -> dict[str, int]:
        """Remove deliveries, keys and counts; give the audit trail, and what the user submitted
        for others, another name. Kind -> how many.
        """
        ...

    async def tokens_that_name(self, user: str) -> list[str]:
        """Names and ids of other principals' live tokens that name the user."""
        ...

    async def empty_log(self) -> bool:
        """Cut off the database's log of changes. False: somebody reads, so part of it is there."""
        ...
