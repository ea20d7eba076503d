"""How large everything becomes, from a data folder."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from server.domain.growth import LOOKED_AT_S, Growth, Stored, forecast, kept
from server.domain.service import Service, ServiceRecord
from server.maintenance.upkeep import DatabaseSize
from server.maintenance.verify import open_known
from server.settings.services import in_file, of_record
from server.settings.tables import ServerSettings
from server.store.growth import ARRIVED, FIRST_HOUR, OLDEST_JOB, arrived
from shared.clock import SECOND, Micros
from shared.settings.base import SettingsError


def predicted(
    settings: ServerSettings, db_path: Path, size: DatabaseSize, now: Micros
) -> Growth | None:
    """What is to be expected; a server may run. None: the history is too short.

    Raises:
        FileNotFoundError, NewerSchema, OldSchema, sqlite3.Error
    """
    with closing(open_known(db_path)) as connection:
        connection.row_factory = sqlite3.Row
        since = {"since": now - LOOKED_AT_S * SECOND}
        first = connection.execute(FIRST_HOUR, since).fetchone()["at"]
        oldest = connection.execute(OLDEST_JOB).fetchone()["at"]
        recent = arrived(connection.execute(ARRIVED, since).fetchall())
        services = _services(settings, connection)
    if first is None:
        return None
    jobs = next(table.rows for table in size.tables if table.name == "jobs")
    age_s = 0.0 if oldest is None else max(0, now - oldest) / SECOND
    stored = Stored(size.bytes, size.free_bytes, jobs, age_s)
    disk = shutil.disk_usage(settings.server.data_dir)
    return forecast(
        recent,
        {name: kept(services.get(name, Service(name))) for name in recent},
        (now - first) / SECOND,
        stored,
        max(0, disk.free - settings.server.least_free(disk.total)),
    )


def _services(settings: ServerSettings, connection: sqlite3.Connection) -> Mapping[str, Service]:
    """Those of the file, and those that operators made."""
    found = in_file(settings)
    rows = connection.execute("SELECT name, settings FROM services WHERE settings IS NOT NULL")
    for row in rows.fetchall():
        record = ServiceRecord(row["name"], json.loads(row["settings"]))
        try:
            service = of_record(record)
        except SettingsError:  # the server says so, and uses the defaults
            service = Service(record.name)
        found.setdefault(record.name, service)
    return found
