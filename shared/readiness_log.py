"""Logs when a program begins, or ceases, to take new work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from shared import logs
from shared.clock import Clock, wait_for

log: structlog.stdlib.BoundLogger = structlog.get_logger()
LOOK_EVERY_S: Final = 7.0
_WANTED: Final = frozenset({"draining", "stopping"})


async def watch(
    look: Callable[[], Awaitable[Mapping[str, str]]], stop: asyncio.Event, clock: Clock
) -> None:
    """Until ``stop``.

    Args:
        look: why no new work is taken: code -> sentence.
    """
    before: list[str] = []
    while not await wait_for(stop, LOOK_EVERY_S, clock):
        logs.FOLDING.flush()
        try:
            found = {code: why for code, why in (await look()).items() if code not in _WANTED}
        except Exception:  # the next look may succeed
            log.exception("readiness.unknown")
            continue
        now = sorted(found)
        if now and now != before:
            log.error("readiness.lost", reasons=now, why="; ".join(found[code] for code in now))
        elif before and not now:
            log.info("readiness.regained", reasons=before)
        before = now
