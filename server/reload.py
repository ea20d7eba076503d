"""SIGHUP: the settings are read again, and what can be changed while the server runs is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from server.settings.agents import AgentTable
from server.settings.differences import differences
from server.settings.tables import ServerSettings
from shared.live import Live
from shared.settings.base import SettingsError

log: structlog.stdlib.BoundLogger = structlog.get_logger()


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
        agents = dict(current.agents)
        for name, agent in agents.items():
            if name in new.agents and agent.drain != new.agents[name].drain:
                agents[name] = agent.model_copy(update={"drain": new.agents[name].drain})
        kept = {"services": new.services, "users": new.users, "groups": new.groups}
        self._live.change(current.model_copy(update={**kept, "agents": agents}))
        await self._apply.agents(agents)
        log.info("settings.reloaded", applied=applied, waiting=waiting)


def _can_be_applied(key: str) -> bool:
    table, *more = key.split(".")
    return table in ("services", "users", "groups") or (
        table == "agents" and len(more) == 2 and more[1] == "drain"
    )
