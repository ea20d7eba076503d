"""Whether the server can take new work, for ``/health``."""

from __future__ import annotations

from server.loops.supervisor import Supervisor
from server.ports import Scratch
from shared.clock import Clock
from shared.probe import Probe
from shared.sqlite.database import Database


class Health:
    """Checks the server.

    Args:
        min_free: bytes of disk that uploads must leave.
    """

    def __init__(
        self,
        database: Database,
        scratch: Scratch,
        supervisor: Supervisor,
        min_free: int,
        clock: Clock,
    ) -> None:
        self._database, self._scratch, self._supervisor = database, scratch, supervisor
        self._min_free = min_free
        self._disk = Probe("the data folder", self._check_disk, clock)

    async def troubles(self) -> list[str]:
        """What is wrong now, in sentences; empty: all is well."""
        problems = [f"the {name} loop is stuck" for name in self._supervisor.stuck_loops()]
        if self._database.failure is not None:
            problems.append(str(self._database.failure))
        return problems + await self._disk.problems()

    def _check_disk(self) -> list[str]:
        problems = []
        try:
            if self._scratch.free_bytes() < self._min_free:
                problems.append("the disk is full")
            self._scratch.check_writable()
        except OSError as problem:
            problems.append(f"the data folder cannot be written: {problem.strerror}")
        return problems
