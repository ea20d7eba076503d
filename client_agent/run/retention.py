"""Removes results, and later the rows and keys of their payloads, once their time is over; and
shared bundles that are not used any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import SharedBundles
from shared import logs
from shared.clock import Clock, wait_for

log: structlog.stdlib.BoundLogger = structlog.get_logger()

INTERVAL_S: Final = 60.0


class RetentionSweep:
    """Removes results that were not acknowledged in time, and later their rows.

    Args:
        retention_s: from the end of an attempt to the removal of its result, and from that to the
            removal of its row, which holds its key.
    """

    def __init__(
        self,
        payloads: Payloads,
        folders: Folders,
        bundles: SharedBundles,
        clock: Clock,
        retention_s: float,
    ) -> None:
        self._payloads, self._folders, self._clock = payloads, folders, clock
        self._bundles, self._retention_s = bundles, retention_s

    async def run_once(self) -> int:
        """One sweep. Returns how many payloads it changed or removed. If that is more than 0,
        there may be more to do."""
        self._bundles.sweep()
        await self._folders.remove_unneeded()
        expired = await self._payloads.expire(self._retention_s)
        if expired:
            await self._folders.remove_results(expired)
            log.warning("results.expired", payloads=expired)
        return len(expired) + await self._payloads.prune(self._retention_s)

    async def run(self, stop: asyncio.Event, tick: Callable[[], None]) -> None:
        """Sweep again and again until ``stop`` is set.

        Args:
            tick: called in each round.
        """
        while not stop.is_set():
            tick()
            try:
                changed = await self.run_once()
                logs.FOLDING.over("sweep.failed", sweep="retention")
            except Exception:  # one failed sweep must not end the loop
                log.exception("sweep.failed", sweep="retention")
                changed = 0
            if not changed:
                await wait_for(stop, INTERVAL_S, self._clock)
