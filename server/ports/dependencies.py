"""Jobs that wait for other jobs."""

from __future__ import annotations

from typing import Protocol

from server.domain.dependencies import BrokenDependency
from shared.clock import Micros


class Dependencies(Protocol):
    """The part of :class:`Jobs` about dependencies."""

    async def unmet(self, job_id: int) -> list[int]:
        """The jobs that it depends on and that have not completed; the first hundred."""
        ...

    async def waiting_for(self, job_id: int) -> list[int]:
        """The jobs that depend on it and have not ended; the first hundred."""
        ...

    async def broken_dependencies(self) -> list[BrokenDependency]:
        """Queued jobs that depend on one that did not complete; some hundreds at a time."""
        ...

    async def repair_dependencies(self, at: Micros) -> int:
        """Settle dependencies on jobs that have ended or are gone, and let jobs be claimed that
        wait for nothing any more. The moves do both already: this is for what no move was made of.

        Returns:
            How many dependencies were settled; some hundreds at a time.
        """
        ...
