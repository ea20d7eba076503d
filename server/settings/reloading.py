"""Which settings can be changed while the server runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from server.settings.tables import ServerSettings
from shared.settings.reloading import LISTENER

RESTART: Final[Mapping[str, str]] = {
    **LISTENER,
    "auth": "who may do everything must not change by a slip",
    "data_dir": "its files are open",
    "db_path": "it is open",
    "url_prefix": "links and cookies have it",
}
"""Keys of ``[server]`` that wait for a restart, and why. A reload applies all others, and all
of the other tables."""


def waits(key: str) -> bool:
    """Whether a setting, such as ``server.port``, is applied by a restart only."""
    table, *more = key.split(".")
    return table == "server" and more[0] in RESTART


def with_old(new: ServerSettings, old: ServerSettings) -> ServerSettings:
    """The new settings, but for those that wait for a restart."""
    kept = {key: getattr(old.server, key) for key in RESTART}
    return new.model_copy(update={"server": new.server.model_copy(update=kept)})
