"""Draining: the agent finishes what it has, then stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from client_agent.payloads.store import Payloads
from client_agent.run.runner import EndRequests, Runner
from shared.clock import Clock, wait_for

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FETCH_S: Final = 600.0
"""After the last attempt of a drained agent has ended, so long it waits for servers to fetch."""
_LOOK_EVERY_S: Final = 0.2


async def drain(
    asked: EndRequests,
    begin: Callable[[], None],
    runner: Runner,
    payloads: Payloads,
    clock: Clock,
) -> None:
    """Once that is asked for, let the agent finish what it has, and stop it when nothing is left:
    also what is Prepared runs, and servers fetch what has ended.

    Args:
        begin: makes the agent take nothing new.
    """
    await asked.drain.wait()
    begin()
    log.info("agent.draining")
    while runner.busy and not await wait_for(asked.stop, _LOOK_EVERY_S, clock):
        pass
    until = clock.monotonic() + FETCH_S
    while not asked.stop.is_set() and await payloads.held_for_servers():
        if clock.monotonic() >= until:
            log.warning("agent.drained_partly", why="servers have not fetched all results")
            break
        await wait_for(asked.stop, _LOOK_EVERY_S, clock)
    asked.stop.set()
