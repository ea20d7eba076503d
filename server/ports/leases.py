"""Leases: which of several servers uses which agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.domain.leases import Lease


class Leases(Protocol):
    """The leases of this run of the server. The clock of the database says when one has
    run out, so the clocks of the servers do not matter.
    """

    owner: str
    """Names this run: 12 hex digits."""
    own: Lease | None
    """That this run is alive, as it was acquired last."""

    async def acquire(self, names: Sequence[str], *, alone: bool = False) -> list[Lease]:
        """Take those that are free, have run out, or are held by this server.

        Args:
            alone: no other server can be running, so take them all, and end the leases of servers.

        Returns:
            Those that it holds now.
        """
        ...

    async def renew(self) -> list[Lease]:
        """Renew all leases of this server; returns those that it still holds.

        It still holds a lease that has run out, if no other server took it.
        """
        ...

    async def release(self) -> None:
        """Give all of them up, so that other servers need not wait until they run out."""
        ...

    async def give_back(self, names: Sequence[str]) -> None:
        """Give these up. Whoever takes one next, this server included, gets a higher token than
        any that was given before.
        """
        ...

    async def running_servers(self) -> set[str]:
        """Owners whose lease :func:`server.domain.leases.of_server` has not run out. The leases of
        all other owners end for good: writes under them are refused.
        """
        ...


class LeaseLost(Exception):
    """Another server has the lease by now: nothing was written, and nothing more is to be done."""

    def __init__(self, agent: str) -> None:
        super().__init__(f"another server uses agent {agent} now")
        self.agent = agent
