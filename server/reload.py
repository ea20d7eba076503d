"""The settings are read again, and what can be changed while the server runs is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

import structlog

from server.domain.errors import NotReloaded
from server.settings.agents import AgentTable
from server.settings.reloading import waits, with_old
from server.settings.tables import ServerSettings
from shared.http.tls import TlsFiles
from shared.live import Live
from shared.settings.base import SettingsError
from shared.settings.differences import differences
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import Reloaded

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Reload:
    """Reads the settings again at each :meth:`run_once`.

    Args:
        live: those that are in use.
        read: raises SettingsError.
        check: raises ValueError if nobody could use a server with these settings, or everybody.
        use_agents: takes the agents; raises ValueError or changes all.
        tls: the files that agents are called with.

    Attributes:
        listening: the files that the server listens with.
    """

    def __init__(
        self,
        live: Live[ServerSettings],
        read: Callable[[], ServerSettings],
        check: Callable[[ServerSettings], None],
        use_agents: Callable[[Mapping[str, AgentTable]], Awaitable[None]],
        tls: Callable[[], Iterable[TlsFiles | None]] = tuple,
    ) -> None:
        self._live, self._read, self._check, self._use_agents = live, read, check, use_agents
        self._tls = tls
        self.listening: TlsFiles | None = None
        self._one_at_a_time = asyncio.Lock()

    async def run_once(self) -> Reloaded:
        """Apply what has changed: all that can be, or nothing.

        Raises:
            NotReloaded: the settings are wrong, and those before are in use.
            DatabaseUnavailable: agents cannot be exchanged; the same.
        """
        async with self._one_at_a_time:
            try:
                return await self._reload()
            except (SettingsError, ValueError, DatabaseUnavailable) as problem:
                log.warning("settings.not_reloaded", why=str(problem))
                if isinstance(problem, DatabaseUnavailable):
                    raise
                raise NotReloaded(str(problem)) from problem

    async def _reload(self) -> Reloaded:
        new, old = await asyncio.to_thread(self._read), self._live.current
        self._check(new)
        used = with_old(new, old)
        self._check(used)
        found = differences(old, new)
        done = Reloaded(
            changed=[one for one in found if not waits(one.key)],
            waiting=[one for one in found if waits(one.key)],
        )
        await self._use_agents(used.agents)
        # First what may fail, and changes nothing then. From here on nothing may fail.
        self._live.change(used)
        for files in filter(None, (self.listening, *self._tls())):
            await asyncio.to_thread(files.reload)
        for one in done.changed:
            log.info("setting.changed", key=one.key, old=one.old, new=one.new)
        for one in done.waiting:
            advice = "restart to apply"
            log.warning("setting.not_applied", key=one.key, old=one.old, new=one.new, advice=advice)
        log.info("settings.reloaded", applied=len(done.changed), waiting=len(done.waiting))
        return done
