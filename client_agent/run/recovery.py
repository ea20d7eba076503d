"""Cleans up at start what the previous run of the agent left behind."""

from __future__ import annotations

import asyncio

import structlog

from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.run import outcomes
from client_agent.sandbox.base import Sandbox
from client_agent.storage.folders import Folders
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
