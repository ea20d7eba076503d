"""The settings are read again: services, users, tokens, agents, and the content of certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from server.domain.errors import NotReloaded
from server.settings.tables import ServerSettings, ServerTable
from shared.http.tls import TlsFiles
from shared.settings.base import SettingsError
from shared.settings.effective import differences
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import Reloaded

log: structlog.stdlib.BoundLogger = structlog.get_logger()
TOKENS: Final = frozenset({"tokens", "metrics_tokens"})
"""Keys of ``[server]`` that a reload applies; all others wait for a restart."""


class Reload:
    """Reads the settings again at each :meth:`run_once`.

    Args:
        settings: those that are in use.
        read: raises SettingsError.
        check: raises ValueError if nobody could use a server with the second in place of the
            first, or everybody.
        use: applies them; raises ValueError or changes all.
        tls: the files that agents are called with.

    Attributes:
        settings: those that are in use.
        listening: the files that the server listens with.
    """

    def __init__(
        self,
        settings: ServerSettings,
        read: Callable[[], ServerSettings],
        check: Callable[[ServerTable, ServerTable], None],
        use: Callable[[ServerSettings], Awaitable[None]],
        tls: Callable[[], Iterable[TlsFiles | None]] = tuple,
    ) -> None:
        self.settings, self._read, self._check, self._use = settings, read, check, use
        self._tls = tls
        self.listening: TlsFiles | None = None
        self._one_at_a_time = asyncio.Lock()

    async def run_once(self) -> Reloaded:
        """Apply what has changed: all that is not to wait for a restart, or nothing.

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
        new, old = await asyncio.to_thread(self._read), self.settings
        waiting = {
            key
            for key in ServerTable.model_fields.keys() - TOKENS
            if getattr(new.server, key) != getattr(old.server, key)
        }
        kept = {key: getattr(old.server, key) for key in waiting}
        used = new.model_copy(update={"server": new.server.model_copy(update=kept)})
        self._check(old.server, new.server)
        self._check(old.server, used.server)
        done = Reloaded(changed=[], waiting=[])
        for one in differences(old, new):
            table, _, key = one.key.partition(".")
            waits = table == "server" and key in waiting
            (done.waiting if waits else done.changed).append(one)
        await self._use(used)
        self.settings = used
        for files in filter(None, (self.listening, *self._tls())):
            await asyncio.to_thread(files.reload)
        for one in done.changed:
            log.info("setting.changed", key=one.key, old=one.old, new=one.new)
        for one in done.waiting:
            advice = "restart to apply"
            log.warning("setting.not_applied", key=one.key, old=one.old, new=one.new, advice=advice)
        log.info("settings.reloaded", applied=len(done.changed), waiting=len(done.waiting))
        return done
