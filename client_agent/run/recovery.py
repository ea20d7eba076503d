"""At start: what an earlier run left; later: what has been kept long enough."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.run import outcome
from client_agent.sandbox.base import Sandbox
from client_agent.storage.folders import Folders
from shared.clock import Clock, wait_for
from shared.wire import PayloadState, Reason

S = PayloadState
log: structlog.stdlib.BoundLogger = structlog.get_logger()

EVERY_S: Final = 60.0


async def recover(payloads: Payloads, folders: Folders, sandbox: Sandbox) -> list[Payload]:
    """Make sure that nothing of an earlier run runs, and say so of what ran.

    Returns:
        The Prepared payloads, oldest first: they are still to run.

    Raises:
        SandboxBroken, DatabaseUnavailable, OSError
    """
    # First of all: a payload that is told to be over must have no process that is alive.
    await sandbox.clear()
    waiting = []
    for payload in await payloads.live():
        if payload.state is S.RUNNING:
            lost = outcome.failed(Reason.AGENT_ERROR, outcome.LOST)
            await payloads.end(payload.id, S.RUNNING, lost)
            log.warning("payload.lost", payload=payload.id, key=payload.key)
        else:
            waiting.append(payload)
    removed = await asyncio.to_thread(folders.sweep, *await payloads.files())
    log.info("agent.recovered", waiting=len(waiting), files_removed=removed)
    return waiting


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
                await self._folders.forget_result(payload_id)
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
