"""At start: what an earlier run of the agent left."""

from __future__ import annotations

import asyncio

import structlog

from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.run import outcome
from client_agent.sandbox.base import Sandbox
from client_agent.storage.folders import Folders
from shared.wire import PayloadState, Reason

S = PayloadState
log: structlog.stdlib.BoundLogger = structlog.get_logger()


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
    removed = await asyncio.to_thread(folders.remove_orphans, *await payloads.files())
    log.info("agent.recovered", waiting=len(waiting), files_removed=removed)
    return waiting
