"""Cleans up: at start what the previous run left behind; then results, and later the rows and keys
of their payloads, once their time is over, and shared bundles that are not used any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.run import outcomes
from client_agent.sandbox.base import Sandbox
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import SharedBundles
from shared import logs
from shared.clock import Clock, wait_for
from shared.wire import PayloadState, Reason

log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def recover(payloads: Payloads, folders: Folders, sandbox: Sandbox) -> list[Payload]:
    """Kill every process of the previous run, end its Running payloads, remove files of none.
    Returns the Prepared payloads, oldest first: they are still to run. Raises SandboxBroken,
    DatabaseUnavailable or OSError."""
    # This comes first: no process of a payload may be alive when the payload is stored as ended.
    await sandbox.clear()
    prepared = []
    for payload in await payloads.live():
        if payload.state is PayloadState.RUNNING:
            lost = outcomes.failed(Reason.AGENT_ERROR, outcomes.LOST)
            await payloads.end(payload.id, PayloadState.RUNNING, lost)
            log.warning("payload.lost", payload_id=payload.id, key=payload.key)
        else:
            prepared.append(payload)
    bundles = {name for one in prepared for name in (one.bundle_file, one.inputs_file)}
    results = await payloads.with_result()
    # A database that is away, or an older copy, is no reason to lose what users wait for.
    moved = await asyncio.to_thread(folders.move_results_aside, await payloads.highest_id())
    if moved:
        log.warning("results.moved_aside", files=moved, folder=str(folders.aside))
    removed = await asyncio.to_thread(folders.remove_orphans, bundles, results)
    log.info("agent.recovered", waiting=len(prepared), files_removed=removed)
    return prepared


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

    async def run_once(self) -> bool:
        """One sweep. Returns whether there may be more to do."""
        self._bundles.sweep()
        await self._folders.remove_unneeded()
        expired = await self._payloads.expire(self._retention_s)
        if expired:
            await self._folders.remove_results(expired)
            log.warning("results.expired", payloads=expired)
        return await self._payloads.prune(self._retention_s) or bool(expired)

    async def run(self, stop: asyncio.Event, tick: Callable[[], None]) -> None:
        """Sweep again and again until ``stop`` is set.

        Args:
            tick: called in each round.
        """
        while not stop.is_set():
            tick()
            try:
                more = await self.run_once()
                logs.FOLDING.over("sweep.failed", sweep="retention")
            except Exception:  # one failed sweep must not end the loop
                log.exception("sweep.failed", sweep="retention")
                more = False
            if not more:
                await wait_for(stop, INTERVAL_S, self._clock)
