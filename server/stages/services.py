"""The services of a running server: those of the settings file, and those that operators made.

Where both have a service, the file's settings hold. Whether it is paused is always in its row,
which outlives the server.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import structlog

from server.domain.errors import BadField, Conflict, NoSuchService
from server.domain.service import SERVICE_NAME, Service, ServiceRecord
from server.settings.load import LiveSettings, of_record
from server.stages.wakeups import JobWakeups
from server.store import changes, services
from shared.clock import Clock
from shared.settings.base import SettingsError
from shared.sqlite.database import Database
from shared.wire import JobsLeft

log = structlog.get_logger()
PAUSED: Final = "paused by an operator"
"""Why a service is paused whose operator says nothing."""
_UNREADABLE: Final = "this server cannot read its settings; the log says why"


class Services(Mapping[str, Service]):
    """All services, as they are now.

    Each change replaces the whole mapping: who goes through it, or holds a service while it waits,
    goes on with what was there before.
    """

    def __init__(
        self, database: Database, settings: LiveSettings, clock: Clock, wakeups: JobWakeups
    ) -> None:
        self._database, self._settings, self._clock = database, settings, clock
        self._wakeups = wakeups
        self._known: dict[str, ServiceRecord] = {}
        self._now: Mapping[str, Service] = {}
        self.settings_changed()

    def __getitem__(self, name: str) -> Service:
        return self._now[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)

    def keys(self) -> KeysView[str]:
        return self._now.keys()

    def values(self) -> ValuesView[Service]:
        return self._now.values()

    def items(self) -> ItemsView[str, Service]:
        return self._now.items()

    async def read(self) -> None:
        """Read what operators decided before this start."""
        records = await self._database.read(services.all_services)
        self._known = {one.name: one for one in records}
        self.settings_changed()

    def settings_changed(self) -> None:
        """Put the services together again, of what the file and the rows say now."""
        now = dict(self._settings.services)
        for record in self._known.values():
            service = now.get(record.name)
            if service is None and record.settings is not None:
                try:
                    service = of_record(record)
                except SettingsError as problem:  # a newer server wrote it, perhaps
                    log.warning("service.unreadable", service=record.name, why=str(problem))
                    service, why = Service(record.name), _UNREADABLE
                    record = replace(record, paused=True, paused_message=why, retired=True)
                service = replace(service, in_file=False)
            if service is not None:
                now[record.name] = replace(
                    service,
                    paused=record.paused,
                    paused_message=record.paused_message,
                    retired=not service.in_file and record.retired,
                    record=record,
                )
        applied = {name: self._settings.allowances.applied(one) for name, one in now.items()}
        self._now = MappingProxyType(applied)
        self._wakeups.services_changed()

    async def gone(self) -> list[JobsLeft]:
        """The jobs that have not ended of services that are in no settings any more."""
        counted = await changes.totals_of(self._database)
        queued, users = dict(counted.services), dict(counted.users)
        in_work = {name: sum(dict(of).values()) for name, of in users.items()}
        return [
            JobsLeft(service=name, queued=queued.get(name, 0), in_work=in_work.get(name, 0))
            for name in sorted({*queued, *users} - self.keys())
        ]

    async def left(self) -> list[JobsLeft]:
        """The same; the log says so, too."""
        found = await self.gone()
        for one in found:
            log.warning("service.gone", **one.model_dump())
        return found

    # -- operators

    def find(self, name: str) -> Service:
        """Raises NoSuchService."""
        service = self._now.get(name)
        if service is None:
            raise NoSuchService(name)
        return service

    async def put(
        self, name: str, settings: Mapping[str, Any], env: Mapping[str, str] | None, by: str
    ) -> tuple[Service, bool]:
        """Make a service, or replace its settings. Raises BadField, Conflict.

        Args:
            env: None: the variables that it has.

        Returns:
            The service, and whether it is new.
        """
        if not re.fullmatch(SERVICE_NAME, name):
            why = "a service's name is up to 64 of A-Z a-z 0-9 _ -, the first one no _ or -"
            raise BadField("name", "invalid_name", f"Invalid name {name[:64]!r}: {why}")
        self._refuse_in_file(name, "change")
        known = self._now.get(name)
        record = (known.record if known else None) or ServiceRecord(name)
        try:
            of_record(replace(record, settings=settings, env=record.env if env is None else env))
        except SettingsError as problem:
            key = str(problem).partition(":")[0]
            raise BadField(key, "invalid_settings", str(problem)) from None
        now = self._clock.now()
        self._keep(await self._database.write(services.put, name, settings, env, now))
        log.info("service.changed", service=name, by=by, settings=dict(settings))
        return self.find(name), known is None

    async def retire(self, name: str, by: str) -> Service:
        """Take no new jobs; those that there are go on to their end. Raises NoSuchService,
        Conflict.
        """
        self.find(name)
        self._refuse_in_file(name, "remove")
        self._keep(await self._database.write(services.retire, name, self._clock.now()))
        log.info("service.retired", service=name, by=by)
        return self.find(name)

    async def pause(self, name: str, message: str | None, by: str) -> Service:
        """Send none of its jobs, and say why; those that were sent go on. Without a message they
        are sent again. Raises NoSuchService.
        """
        self.find(name)
        now = self._clock.now()
        self._keep(await self._database.write(services.set_paused, name, message, now))
        paused = message is not None
        log.info("service.paused" if paused else "service.resumed", service=name, by=by)
        return self.find(name)

    def _keep(self, record: ServiceRecord) -> None:
        self._known[record.name] = record
        self.settings_changed()

    def _refuse_in_file(self, name: str, what: str) -> None:
        if name in self._settings.services:
            why = f"service {name} is in the server's settings file: {what} it there"
            raise Conflict("service_in_file", f"{why}, then reload the server (SIGHUP)")
