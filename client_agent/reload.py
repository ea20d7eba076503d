"""SIGHUP: the agent's settings are read again: its tokens, services and certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from client_agent.settings.agent import AgentSection
from shared.http.sockets import CannotListen, check_exposure
from shared.http.tls import TlsFiles
from shared.settings.base import SettingsError
from shared.settings.effective import differences

log: structlog.stdlib.BoundLogger = structlog.get_logger()
APPLIED: Final = frozenset({"tokens", "metrics_tokens", "services"})
"""Keys of ``[agent]`` that a reload applies; all others wait for a restart."""


class Reload:
    """Reads the settings again at each :meth:`run_once`.

    Args:
        settings: those in use.
        read: raises SettingsError.
        use: applies them.
        tls: the files that it listens with.

    Attributes:
        settings: those in use.
    """

    def __init__(
        self,
        settings: AgentSection,
        read: Callable[[], AgentSection],
        use: Callable[[AgentSection], None],
        tls: TlsFiles | None = None,
    ) -> None:
        self.settings, self._read, self._use, self._tls = settings, read, use, tls
        self._one_at_a_time = asyncio.Lock()

    async def run_once(self) -> bool:
        """Apply what has changed: all that is not to wait for a restart, or nothing. Returns
        whether it was."""
        async with self._one_at_a_time:
            try:
                new = await asyncio.to_thread(self._read)
                self._check(new)
            except (SettingsError, ValueError, CannotListen) as problem:
                log.warning("settings.not_reloaded", why=str(problem))
                return False
            await self._apply(new)
            return True

    def _check(self, new: AgentSection) -> None:
        """Without a token, whoever reaches it could run programs."""
        if self.settings.all_tokens() and not new.all_tokens():
            raise ValueError("agent.tokens: the last token is taken out by a restart only")
        check_exposure(new.host, bool(new.all_tokens()), "agent")

    async def _apply(self, new: AgentSection) -> None:
        old = self.settings
        waiting = {
            key
            for key in AgentSection.model_fields.keys() - APPLIED
            if getattr(new, key) != getattr(old, key)
        }
        self.settings = new.model_copy(update={key: getattr(old, key) for key in waiting})
        self._use(self.settings)
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
