"""The tables of users and groups in the server's TOML file: what is different for some."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from shared.settings.base import Section
from shared.units.rates import RateLimit
from shared.units.sizes import Size

USER_NAME: Final = r"[A-Za-z0-9._@-]{1,64}"


class UserServiceTable(Section):
    """Table ``[users.NAME.services.SERVICE]``: what is different for one user in one service."""

    runs_per_user: int | None = Field(None, ge=1)
    queued_per_user: int | None = Field(None, ge=0)


class UserTable(Section):
    """Table ``[users.NAME]``: what is different for one user, or for one portal. What is not set is
    as for everybody.
    """

    rate_limit: RateLimit | None = None
    upload_per_user_per_day: Size | None = Field(None, ge=0)
    stored_per_user: Size | None = Field(None, ge=0)
    uploads_per_user: int | None = Field(None, ge=1)
    runs_per_user: int | None = Field(None, ge=1)
    """In every service that has none in ``services``."""
    queued_per_user: int | None = Field(None, ge=0)
    services: dict[str, UserServiceTable] = Field(default_factory=dict)


class GroupTable(UserTable):
    """Table ``[groups.NAME]``: what is different for each of some users."""

    members: tuple[str, ...]
