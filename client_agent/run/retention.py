"""Results and keys that have been kept long enough."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from shared.clock import Clock, wait_for

log: structlog.stdlib.BoundLogger = structlog.get_logger()

EVERY_S: Final = 60.0


class Keeper:
    """Removes results that nobody acknowledged in time, and later the memory of them.

    Args:
        retention_s: from the end of an attempt to the removal of its result, and from that to
            forgetting its key.
    """

    def __init__(
        self, payloads: Payloads, folders: Folders, clock: Clock, retention_s: float
    ) -> None:
        self._payloads, self._folders, self._clock = payloads, folders, clock
        self._retention_s = retention_s

    async def run_once(self) -> int:
        """One sweep.

        Returns:
            How many payloads it touched; it may have left some for the next.
        """
        expired = await self._payloads.expire(self._retention_s)
        if expired:
            for payload_id in expired:
                await self._folders.remove_result(payload_id)
            log.warning("results.expired", payloads=expired)
        return len(expired) + await self._payloads.prune(self._retention_s)

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep again and again until ``stop`` is set."""
        while not stop.is_set():
            try:
                touched = await self.run_once()
            except Exception:  # one bad sweep must not end keeping
                log.exception("sweep.failed", sweep="keeper")
                touched = 0
            if not touched:
                await wait_for(stop, EVERY_S, self._clock)
