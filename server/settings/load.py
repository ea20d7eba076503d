"""Reads the settings: a TOML file, then variables, those of job-orchestrator too, then flags. What
is refused of them where it follows from several keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from server.domain.service import Service, ServiceRecord
from server.settings.tables import AgentTable, ServerSettings, ServerTable, ServiceTable, allowances
from shared.http.sockets import CannotListen, check_exposure
from shared.settings.base import SettingsError
from shared.settings.load import load, read_table

_OF_SERVICE: Final = re.compile(
    r"SERVICE_(.*)_(UPLOAD_URL|DOWNLOAD_URL|TERMINATE_URL|RUNS_PER_USER|MAX_RUNS)"
)


def agent_at(url: str) -> AgentTable:
    """A Ferryman agent. Raises SettingsError: no address."""
    try:
        return AgentTable(url=url)
    except ValidationError as problem:
        why = problem.errors()[0]["msg"].removeprefix("Value error, ")
        raise SettingsError(f"--agent-url: {why}") from None


def read(
    file: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> ServerSettings:
    """Read file, variables and flags. Raises SettingsError."""
    return load(
        ServerSettings,
        file=file,
        flags=flags,
        environ=environ,
        ignore=["agent"],
        extra=orchestrator(environ),
    )


def of_record(record: ServiceRecord) -> Service:
    """The service that a row describes. Raises SettingsError."""
    table = {**(record.settings or {}), "env": record.env}
    return read_table(ServiceTable, table).service(record.name)


def check_tokens(table: ServerTable, *, others: bool) -> None:
    """Refuse settings with which nobody could do anything, or anybody everything. Raises
    CannotListen. ``others``: whether there are operators' tokens that were made while the server
    ran.
    """
    check_exposure(table.host, table.needs_token, "server")
    if not table.needs_token or table.all_tokens() or others:
        return
    check_exposure(table.host, protected=False, what="server")
    raise CannotListen(
        'refusing to start with auth = "token" and without a token: nobody could use it. '
        "Set server.tokens, and with one of them make others: "
        "ferryman token create"
    )


def orchestrator(environ: Mapping[str, str]) -> dict[str, Any]:
    """job-orchestrator's own variables as tables of the settings. Raises SettingsError: not a
    number, or a service without all three addresses.
    """
    server: dict[str, Any] = {}
    if "PORT" in environ:
        server["port"] = _number(environ, "PORT")
    if "DB_PATH" in environ:
        server["db_path"] = environ["DB_PATH"]
    if "DATA_PATH" in environ:
        server["data_dir"] = environ["DATA_PATH"]
    services: dict[str, dict[str, Any]] = {}
    addresses: dict[str, dict[str, str]] = {}
    for name in environ:
        if (of_service := _OF_SERVICE.fullmatch(name)) is None:
            continue
        service, key = map(str.lower, of_service.groups())
        table = services.setdefault(service, {})
        if key.endswith("_url"):
            addresses.setdefault(service, {})[key] = environ[name]
        else:
            table[key] = _number(environ, name)
    if "MAX_AGE" in environ:
        for table in services.values() or [services.setdefault("example", {})]:
            table["expires_after"] = _number(environ, "MAX_AGE")
    tables: dict[str, Any] = {"server": server} if server else {}
    if services:
        tables["services"] = services
    if addresses:
        tables["agents"] = {
            service: {**urls, "services": [service]} for service, urls in addresses.items()
        }
    return tables


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise SettingsError(f"{name}: {environ[name]!r} is not a whole number") from None


class LiveSettings:
    """What each part holds of the settings: it reads them by name when it needs them, as in
    ``settings.server.max_upload``. A reload puts others in their place; of ``[server]`` only the
    tokens, the rest waits for a restart (:mod:`server.reload`).

    Attributes:
        tables: all of them.
        server, agents: two of the tables.
        services: those that the file has.
        allowances: what each user may have.
    """

    def __init__(self, tables: ServerSettings) -> None:
        self.use(tables)

    def use(self, tables: ServerSettings) -> None:
        """In place of those before."""
        self.tables, self.server, self.agents = tables, tables.server, tables.agents
        self.services = {name: table.service(name) for name, table in tables.services.items()}
        self.allowances = allowances(tables.server, tables.users)
