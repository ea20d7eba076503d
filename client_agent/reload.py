"""SIGHUP: the agent's settings are read again, and what can be changed while it runs is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from client_agent.settings.agent import AgentSection
from shared.http.sockets import CannotListen, check_exposure
from shared.http.tls import TlsFiles
from shared.live import Live
from shared.settings.base import SettingsError
from shared.settings.differences import differences
from shared.settings.reloading import LISTENER

log: structlog.stdlib.BoundLogger = structlog.get_logger()

RESTART: Final[Mapping[str, str]] = {
    **LISTENER,
    "name": "servers know it by this one",
    "data_dir": "its files are open",
    "database": "it is open",
    "identity_secret": "servers have proof of this one",
    "identity_secret_file": "servers have proof of this one",
    "sandbox": "it was tested at the start",
    "sandboxing": "it was tested at the start",
    "grace": "attempts that run began with this one",
    "shutdown_grace": "the supervisor knows it",
}
"""Keys of ``[agent]`` that wait for a restart, and why. All others are applied; ``slots`` up to
those of the start."""


class Reload:
    """Reads the settings again at each :meth:`run_once`.

    Args:
        live: those in use.
        read: raises SettingsError.
        tls: the files that it listens with.
    """

    def __init__(
        self,
        live: Live[AgentSection],
        read: Callable[[], AgentSection],
        tls: TlsFiles | None = None,
    ) -> None:
        self._live, self._read, self._tls = live, read, tls
        self._most_slots = live.current.slots
        self._one_at_a_time = asyncio.Lock()

    async def run_once(self) -> bool:
        """Apply what has changed: all that can be, or nothing. Returns whether it was."""
        async with self._one_at_a_time:
            try:
                new = await asyncio.to_thread(self._read)
                self._check(new)
            except (SettingsError, ValueError, CannotListen) as problem:
                log.warning("settings.not_reloaded", why=str(problem))
                return False
            await self._use(new)
            return True

    def _check(self, new: AgentSection) -> None:
        """Without a token, whoever reaches it could run programs."""
        if self._live.current.all_tokens() and not new.all_tokens():
            raise ValueError("agent.tokens: the last token is taken out by a restart only")
        check_exposure(new.host, bool(new.all_tokens()), "agent")

    async def _use(self, new: AgentSection) -> None:
        old = self._live.current
        waiting = {*RESTART, *(["slots"] if new.slots > self._most_slots else [])}
        used = new.model_copy(update={key: getattr(old, key) for key in waiting})
        self._live.change(used)
        if self._tls is not None:
            await asyncio.to_thread(self._tls.reload)
        applied = 0
        found = differences(old, new)
        for one in found:
            values = {"key": f"agent.{one.key}", "old": one.old, "new": one.new}
            if one.key.partition(".")[0] in waiting:
                log.warning("setting.not_applied", **values, advice="restart to apply")
            else:
                applied += 1
                log.info("setting.changed", **values)
        log.info("settings.reloaded", applied=applied, waiting=len(found) - applied)
