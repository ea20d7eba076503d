"""The services of the settings, and of rows that operators made."""

from __future__ import annotations

from server.domain.service import Service, ServiceRecord
from server.settings.tables import ServerSettings, ServiceTable
from shared.settings.load import read_table


def in_file(settings: ServerSettings) -> dict[str, Service]:
    """The services of the settings file."""
    return {name: table.service(name) for name, table in settings.services.items()}


def of_record(record: ServiceRecord) -> Service:
    """The service that a row describes. Raises SettingsError."""
    table = {**(record.settings or {}), "env": record.env}
    return read_table(ServiceTable, table).service(record.name)
