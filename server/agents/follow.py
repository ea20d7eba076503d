"""One long-lived conversation with each agent: greet, compare, then follow its event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from server.agents.link import Link
from server.agents.registry import Registry
from server.ports import AgentError, Unreachable
from server.stages.get import Get
from shared.clock import Clock, wait_for

log = structlog.get_logger()
_GREET_AGAIN_S: Final = 10.0
_BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


async def follow(
    link: Link,
    registry: Registry,
    get: Get,
    clock: Clock,
    stop: asyncio.Event,
    back: Callable[[], None],
) -> None:
    """Until ``stop``: keep in touch with one agent.

    Args:
        back: called when the agent has become reachable.
    """
    failures = 0
    while not stop.is_set():
        was_up = link.up
        try:
            link.health = await link.ask_health()
            _check_well(link)
            if link.health.agent is None:
                registry.heard(link, tells=False)
                failures = 0
                if not was_up:
                    log.info("agent.up", agent=link.name, kind="job-orchestrator")
                    back()
                await wait_for(stop, _GREET_AGAIN_S, clock)
                continue
            listing = await link.payloads()
            registry.heard(link, tells=True)  # first, so that what reconciling starts goes on
            await get.reconcile(link, listing)
            failures = 0
            log.info("agent.up", agent=link.name, payloads=len(listing.payloads))
            back()
            async for event in link.events(listing.seq):
                if event.payload is not None:
                    get.told(link, event.payload)
            registry.missed(link, f"agent {link.name} ended the conversation")
            log.warning("agent.down", agent=link.name, error=link.trouble)
        except AgentError as problem:
            registry.missed(link, str(problem))
            if was_up or failures == 0:
                log.warning("agent.down", agent=link.name, error=str(problem))
        except Exception:
            registry.missed(link, f"agent {link.name}: talking to it failed")
            log.exception("agent.conversation_failed", agent=link.name)
        await wait_for(stop, _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)], clock)
        failures += 1


def _check_well(link: Link) -> None:
    if link.health is not None and link.health.status != "ok":
        raise Unreachable(f"agent {link.name} is not well: {link.health.message}", sent=False)
