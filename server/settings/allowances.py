"""What each user may have, by the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from server.domain.allowances import EVERY_SERVICE, Allowance, Allowances
from server.settings.tables import ServerSettings
from server.settings.users import UserTable

_KEYS: Final = {
    "stored_per_user": "stored",
    "upload_per_user_per_day": "uploaded",
    "uploads_per_user": "uploads",
    "rate_limit": "rate",
}
"""Key of the settings -> of an allowance."""


def allowances(settings: ServerSettings) -> Allowances:
    """What the table [server] says, then a user's group, then the user's own table."""
    table = settings.server
    usual = Allowance(**{field: getattr(table, key) for key, field in _KEYS.items()})
    exceptions = {
        user: replace(_with(usual, group), group=name)
        for name, group in settings.groups.items()
        for user in group.members
    }
    for user, own in settings.users.items():
        exceptions[user] = _with(exceptions.get(user, usual), own)
    return Allowances(usual, exceptions)


def _with(allowed: Allowance, table: UserTable) -> Allowance:
    changes: dict[str, Any] = {
        field: value for key, field in _KEYS.items() if (value := getattr(table, key)) is not None
    }
    for field, key, before in (
        ("runs", "runs_per_user", allowed.runs),
        ("queued", "queued_per_user", allowed.queued),
    ):
        # A number for every service is nearer than a group's for one of them.
        numbers = {} if getattr(table, key) is not None else dict(before)
        for service, named in ((EVERY_SERVICE, table), *table.services.items()):
            number = getattr(named, key)
            if number is not None:
                numbers[service] = number
        changes[field] = numbers
    return replace(allowed, **changes)
