"""SIGHUP: the settings are read again, and what can be changed while the server runs is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from server.settings.agents import AgentTable
from server.settings.differences import differences
from server.settings.tables import ServerSettings
from shared.live import Live
from shared.settings.base import SettingsError

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_APPLIED: Final = frozenset({"agents", "groups", "services", "users"})


class Apply(Protocol):
    """Takes what can be changed while the server runs."""

    async def agents(self, agents: Mapping[str, AgentTable]) -> None:
        """Talk to these agents from now on, in this way."""
        ...


class Reload:
    """Reads the settings again at each :meth:`run_once`.

    Args:
        live: those that are in use.
        read: raises SettingsError.
    """

    def __init__(
        self, live: Live[ServerSettings], read: Callable[[], ServerSettings], apply: Apply
    ) -> None:
        self._live, self._read, self._apply = live, read, apply

    async def run_once(self) -> None:
        """Apply what has changed. Settings that cannot be read change nothing."""
        try:
            new = await asyncio.to_thread(self._read)
        except SettingsError as problem:
            log.warning("settings.not_reloaded", why=str(problem))
            return
        current = self._live.current
        applied, waiting = 0, 0
        for one in differences(current, new):
            values = {"key": one.key, "old": one.old, "new": one.new}
            if _can_be_applied(one.key):
                applied += 1
                log.info("setting.changed", **values)
            else:
                waiting += 1
                log.warning("setting.not_applied", **values, advice="restart to apply")
        kept = {name: getattr(new, name) for name in sorted(_APPLIED)}
        await self._apply.agents(new.agents)  # first: it may fail, and changes nothing then
        self._live.change(current.model_copy(update=kept))
        log.info("settings.reloaded", applied=applied, waiting=waiting)


def _can_be_applied(key: str) -> bool:
    return key.partition(".")[0] in _APPLIED
