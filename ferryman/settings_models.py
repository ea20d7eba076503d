"""The documents about a server's settings, exactly as they are on the wire."""

from __future__ import annotations

from pydantic import Field

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


class JobsLeft(Wire):
    """Jobs of a service that is in no settings any more."""

    service: str
    queued: int
    """Those that wait; 10,000: that many or more."""
    in_work: int
    """Slots that others hold."""

    def __str__(self) -> str:
        return say_gone(self.service, self.queued, self.in_work)


def say_gone(service: str, queued: int, in_work: int) -> str:
    """As a sentence for people."""
    waits = "job waits" if queued == 1 else "jobs wait"
    return f"service {service} is in no settings any more: {queued} {waits}, {in_work} in work"


class Reloaded(Wire):
    """``POST /api/v1/settings/reload``."""

    changed: list[SettingChange]
    """What holds from now on."""
    waiting: list[SettingChange]
    """What needs a restart."""
    left: list[JobsLeft] = Field(default_factory=list)
    """Of services that were taken out or renamed."""
