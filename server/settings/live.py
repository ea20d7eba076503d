"""The settings in use."""

from __future__ import annotations

from server.settings.tables import ServerSettings
from server.settings.users import allowances


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
