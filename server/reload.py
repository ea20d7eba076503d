"""SIGHUP: the settings are read again, and what can be changed while the server runs is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from server.domain.allowances import Allowances
from server.domain.service import Service
from server.settings.allowances import allowances
from server.settings.differences import differences
from server.settings.services import in_file
from server.settings.tables import ServerSettings
from shared.settings.base import SettingsError

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Apply(Protocol):
    """Takes what can be changed while the server runs."""

    def services(self, services: Mapping[str, Service]) -> None: ...

    def allowances(self, allowances: Allowances) -> None: ...

    def drain(self, agent: str, drain: bool) -> None: ...


class Reload:
    """Reads the settings again at each :meth:`run_once`.

    Args:
        settings: those that the server was started with.
        read: raises SettingsError.
    """

    def __init__(
        self, settings: ServerSettings, read: Callable[[], ServerSettings], apply: Apply
    ) -> None:
        self._current, self._read, self._apply = settings, read, apply

    async def run_once(self) -> None:
        """Apply what has changed. Settings that cannot be read change nothing."""
        try:
            new = await asyncio.to_thread(self._read)
        except SettingsError as problem:
            log.warning("settings.not_reloaded", why=str(problem))
            return
        applied, waiting = 0, 0
        for one in differences(self._current, new):
            values = {"key": one.key, "old": one.old, "new": one.new}
            if _can_be_applied(one.key):
                applied += 1
                log.info("setting.changed", **values)
            else:
                waiting += 1
                log.warning("setting.not_applied", **values, advice="restart to apply")
        agents = dict(self._current.agents)
        for name, agent in agents.items():
            if name in new.agents and agent.drain != new.agents[name].drain:
                agents[name] = agent.model_copy(update={"drain": new.agents[name].drain})
                self._apply.drain(name, agents[name].drain)
        kept = {"services": new.services, "users": new.users, "groups": new.groups}
        self._current = self._current.model_copy(update={**kept, "agents": agents})
        self._apply.allowances(allowances(self._current))  # the table [server] stays as it is
        self._apply.services(in_file(new))
        log.info("settings.reloaded", applied=applied, waiting=waiting)


def _can_be_applied(key: str) -> bool:
    table, *more = key.split(".")
    return table in ("services", "users", "groups") or (
        table == "agents" and len(more) == 2 and more[1] == "drain"
    )
