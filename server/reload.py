"""The settings are read again: services, users, tokens, agents, and the content of certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from server.domain.errors import Conflict
from server.fleet import Fleet
from server.settings.load import LiveSettings, check_tokens
from server.settings.tables import ServerSettings, ServerTable
from server.stages.services import Services
from server.stages.tokens import Tokens
from shared.http import authentication
from shared.http.sockets import CannotListen
from shared.http.tls import TlsFiles
from shared.settings.base import SettingsError
from shared.settings.effective import differences
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import Reloaded

log: structlog.stdlib.BoundLogger = structlog.get_logger()
TOKENS: Final = frozenset({"tokens", "metrics_tokens"})
"""Keys of ``[server]`` that a reload applies; all others wait for a restart."""


class Reload:
    """Reads the settings again at each call, and has them applied where they are not read by name.

    Args:
        read: raises SettingsError.
        known: the tokens of the settings.
        issued: those that were made while the server ran.

    Attributes:
        listening: the files that the server listens with.
    """

    def __init__(
        self,
        settings: LiveSettings,
        read: Callable[[], ServerSettings],
        agents: Fleet,
        services: Services,
        known: authentication.Tokens,
        issued: Tokens,
    ) -> None:
        self._settings, self._read = settings, read
        self._agents, self._services = agents, services
        self._known, self._issued = known, issued
        self.listening: TlsFiles | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self) -> Reloaded:
        """Apply what has changed: all that is not to wait for a restart, or nothing.

        Raises:
            Conflict: the settings are wrong, and those before are in use.
            DatabaseUnavailable: agents cannot be exchanged; the same.
        """
        async with self._one_at_a_time:
            try:
                return await self._reload()
            except (SettingsError, CannotListen, ValueError, DatabaseUnavailable) as problem:
                log.warning("settings.not_reloaded", why=str(problem))
                if isinstance(problem, DatabaseUnavailable):
                    raise
                message = f"nothing was changed, the settings are wrong: {problem}"
                raise Conflict("settings_not_reloaded", message) from problem

    async def _reload(self) -> Reloaded:
        new, old = await asyncio.to_thread(self._read), self._settings.tables
        waiting = {
            key
            for key in ServerTable.model_fields.keys() - TOKENS
            if getattr(new.server, key) != getattr(old.server, key)
        }
        kept = {key: getattr(old.server, key) for key in waiting}
        used = new.model_copy(update={"server": new.server.model_copy(update=kept)})
        for server in (new.server, used.server):
            if old.server.needs_token and not server.needs_token:
                raise SettingsError(
                    "server.tokens: without the last token nobody would need one: "
                    "give one, or restart the server if that is meant"
                )
            check_tokens(server, others=bool(self._issued.operators))
        done = Reloaded(changed=[], waiting=[])
        for one in differences(old, new):
            table, _, key = one.key.partition(".")
            waits = table == "server" and key in waiting
            (done.waiting if waits else done.changed).append(one)
        await self._agents.apply(used.agents)  # first what may fail, and changes nothing then
        self._settings.use(used)
        self._services.settings_changed()
        self._known.use_settings(used.server)
        clients = self._agents.clients.values()
        for files in filter(None, (self.listening, *(one.tls for one in clients))):
            await asyncio.to_thread(files.reload)
        for one in done.changed:
            log.info("setting.changed", key=one.key, old=one.old, new=one.new)
        for one in done.waiting:
            advice = "restart to apply"
            log.warning("setting.not_applied", key=one.key, old=one.old, new=one.new, advice=advice)
        log.info("settings.reloaded", applied=len(done.changed), waiting=len(done.waiting))
        return done.model_copy(update={"left": await self._services.left()})
