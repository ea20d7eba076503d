"""The tables of users in the server's TOML file: what is different for some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import Field

from server.domain.allowances import EVERY_SERVICE, Allowance, Allowances
from server.domain.upload_fields import USER_ID
from shared.settings.base import Section
from shared.units.rates import RateLimit
from shared.units.sizes import Size


class UserServiceTable(Section):
    """Table ``[users.LABEL.services.SERVICE]``: what is different for users in one service."""

    runs_per_user: int | None = Field(None, ge=1)
    queued_per_user: int | None = Field(None, ge=0)


class UserTable(UserServiceTable):
    """Table ``[users.LABEL]``: what is different for some users, or portals. What is not set is as
    for everybody; the two numbers hold in every service that has none in ``services``.
    """

    members: tuple[str, ...] = ()
    """Users, and beginnings of names as in ``lab-*``; empty: the one that the label names."""
    rate_limit: RateLimit | None = None
    upload_per_user_per_day: Size | None = Field(None, ge=0)
    stored_per_user: Size | None = Field(None, ge=0)
    uploads_per_user: int | None = Field(None, ge=1)
    services: dict[str, UserServiceTable] = Field(default_factory=dict)


def check_users(users: Mapping[str, UserTable]) -> None:
    """A user in two tables would have two numbers of each kind. Raises ValueError."""
    names = [(name, label) for label, table in users.items() for name in table.members or (label,)]
    for name, label in names:
        if not USER_ID.fullmatch(name.removesuffix("*") if users[label].members else name):
            raise ValueError(
                f"users.{label}: {name!r} is no user: a name is 1 to 64 of A-Z a-z 0-9 . _ @ -, "
                'and ["lab-*"] are members whose names begin so'
            )
    of_name: dict[str, str] = {}
    for name, label in names:
        other = of_name.setdefault(name, label)
        if other != label:
            raise ValueError(_twice(name, other, label))
    for some, label in names:
        if some.endswith("*"):
            for name, other in names:
                if other != label and name.startswith(some[:-1]):
                    raise ValueError(_twice(name, label, other))


def _twice(name: str, label: str, other: str) -> str:
    return f"{name!r} is in users.{label} and in users.{other}: a user is in one table at most"


_KEYS: Final = {
    "stored_per_user": "stored",
    "upload_per_user_per_day": "uploaded",
    "uploads_per_user": "uploads",
    "rate_limit": "rate",
}
"""Key of the settings -> of an allowance."""


def allowances(server: Section, users: Mapping[str, UserTable]) -> Allowances:
    """What each user may have. The table ``server`` says what holds for everybody."""
    usual = Allowance(**{field: getattr(server, key) for key, field in _KEYS.items()})
    exceptions: dict[str, Allowance] = {}
    for label, table in users.items():
        own = replace(_with(usual, table), group=label if table.members else "")
        exceptions |= dict.fromkeys(table.members or (label,), own)
    return Allowances(usual, exceptions)


def _with(usual: Allowance, table: UserTable) -> Allowance:
    changes: dict[str, Any] = {
        field: value for key, field in _KEYS.items() if (value := getattr(table, key)) is not None
    }
    for field, key in (("runs", "runs_per_user"), ("queued", "queued_per_user")):
        numbers = {EVERY_SERVICE: getattr(table, key)}
        numbers |= {name: getattr(one, key) for name, one in table.services.items()}
        changes[field] = {name: one for name, one in numbers.items() if one is not None}
    return replace(usual, **changes)
