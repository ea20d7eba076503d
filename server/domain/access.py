"""Who may do what: all the rules.

A ``user`` sees, makes and changes the jobs of its own ``user_id``. A ``portal`` makes jobs for any
user, and sees and changes those that it submitted. An ``operator`` does everything. An ``agent``
has nothing to do with jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from server.domain.errors import NotAllowed
from shared.principals import Principal, Role


class Area(Enum):
    """What a route is about."""

    OPEN = auto()
    """Whether all is well, and what can be called: for everybody, authenticated or not."""
    STATUS = auto()
    """What the server offers."""
    JOBS = auto()
    AGENTS = auto()
    SERVICES = auto()
    """Changing what the server offers."""


_ROLES: Final[Mapping[Area, frozenset[Role | None]]] = {
    Area.OPEN: frozenset({None, *Role}),
    Area.STATUS: frozenset(Role),
    Area.JOBS: frozenset({Role.USER, Role.PORTAL, Role.OPERATOR}),
    Area.AGENTS: frozenset({Role.OPERATOR}),
    Area.SERVICES: frozenset({Role.OPERATOR}),
}


def check_area(principal: Principal, area: Area) -> None:
    """Refuse a role that has nothing to do with the routes of an area.

    Raises:
        NotAllowed
    """
    if principal.role not in _ROLES[area]:
        roles = ", ".join(sorted(role or "anybody" for role in _ROLES[area]))
        raise NotAllowed(f"{principal.name} may not do this: it is for the roles {roles}")


class Owned(Protocol):
    """A job or a schedule."""

    @property
    def user_id(self) -> str: ...

    @property
    def submitted_by(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Scope:
    """The jobs and schedules that a principal may see and change; None: any."""

    user_id: str | None = None
    submitted_by: str | None = None

    def has(self, record: Owned) -> bool:
        return self.user_id in (None, record.user_id) and self.submitted_by in (
            None,
            record.submitted_by,
        )


def scope(principal: Principal) -> Scope:
    """The jobs that the principal may see and change.

    Raises:
        NotAllowed: its role has none.
    """
    match principal.role:
        case Role.USER:
            return Scope(user_id=principal.user_id)
        case Role.PORTAL:
            return Scope(submitted_by=principal.name)
        case Role.OPERATOR:
            return Scope()
        case _:
            raise NotAllowed(f"{principal.name} has no jobs")


def check_upload(principal: Principal, user_id: str) -> None:
    """Refuse an upload for a user for whom the principal may make no jobs.

    Raises:
        NotAllowed
    """
    if scope(principal).user_id not in (None, user_id):
        raise NotAllowed(
            f"{principal.name} may upload for user {principal.user_id} only, not for {user_id}"
        )
