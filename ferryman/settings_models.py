"""The documents about a server's settings, exactly as they are on the wire."""

from __future__ import annotations

from ferryman.models import Wire


class SettingChange(Wire):
    """One setting that was changed, made or removed."""

    key: str
    """As in ``services.haddock.timeout``."""
    old: str | None
    """As it is shown, secrets as (secret); "taken out" of a table, such as a service or an agent;
    None: it was not there.
    """
    new: str | None
    """The same, a new table as "added"; None: it is not there any more."""


class Reloaded(Wire):
    """``POST /api/v1/settings/reload``."""

    changed: list[SettingChange]
    """What holds from now on."""
    waiting: list[SettingChange]
    """What needs a restart."""
