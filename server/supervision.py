"""What systemd and the log get of a server that runs: whether it is alive, and how it is."""

from __future__ import annotations

import structlog

from server.composed import Server
from server.domain.troubles import TroubleKind
from server.http.status import status_of

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Supervision:
    """Looks at a server from time to time."""

    def __init__(self, server: Server) -> None:
        self._context, self._supervisor = server.context, server.supervisor
        self._stuck: list[str] = []

    async def alive(self) -> bool:
        """Whether a restart would not help: every loop goes round, or waits for a disk that does
        not answer, for which a new process would wait, too.
        """
        stuck = self._supervisor.stuck()
        if stuck and stuck != self._stuck:
            log.error("loop.stuck", loops=stuck)
        self._stuck = stuck
        if not stuck:
            return True
        troubles = await self._context.troubles()
        return any(one.kind is TroubleKind.DATA_FOLDER_SILENT for one in troubles)

    async def sentence(self) -> str:
        """For ``systemctl status``."""
        found = await status_of(self._context)
        jobs = "jobs cannot be counted"
        if found.queued is not None and found.in_work is not None:
            jobs = f"{found.in_work} of {found.slots} slots in use, {found.queued} jobs queued"
        wrong = "; ".join(one.message for one in found.troubles) or "all is well"
        return f"{jobs}; {wrong}"

    async def unready(self) -> dict[str, str]:
        """Why no uploads are taken: kind of trouble -> sentence."""
        return {one.kind.value: one.text for one in await self._context.troubles()}
